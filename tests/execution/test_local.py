from remanence.execution import Local


def test_the_local_backend_is_an_ordered_lazy_map() -> None:
    asked = []

    def note(item: int) -> int:
        asked.append(item)
        return item * 10

    mapped = Local().map(note, iter(range(3)))
    assert asked == []
    assert next(mapped) == 0
    assert asked == [0]
    assert list(mapped) == [10, 20]
