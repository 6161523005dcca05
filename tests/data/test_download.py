"""Downloads from a real server on 127.0.0.1 that cuts, lies, refuses and ignores ranges."""

import hashlib
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from refusals import refused

from remanence.data.download import FetchFailed, KnownFile, Source, fetch

CONTENT = bytes(range(256)) * 1500  # 384 kB, several chunks


@dataclass(kw_only=True)
class Behaviour:
    """What the server has, how it misbehaves, and what it was asked for."""

    files: dict[str, bytes]
    address: str = ""
    cut_after: int | None = None
    ranges: bool = True
    shift: int = 0  # added to the start of the range it sends
    chunked: bool = False
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Behaviour]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    behaviour = Behaviour(files={"a.gz": CONTENT})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(behaviour))
    behaviour.address = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield behaviour
    server.shutdown()
    thread.join()
    server.server_close()


def handler_of(behaviour: Behaviour) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            behaviour.asked.append((self.path, asked))
            content = behaviour.files.get(self.path.lstrip("/"))
            if content is None:
                return self.send_error(404)
            start = 0
            if asked and behaviour.ranges:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    return self.send_error(416)
                start += behaviour.shift
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            return self.send_body(content[start:])

        def send_body(self, body: bytes) -> None:
            head = ("Transfer-Encoding", "chunked") if behaviour.chunked else ("Content-Length", str(len(body)))
            self.send_header(*head)
            self.end_headers()
            if behaviour.chunked:
                self.wfile.write(f"{len(body):x}\r\n".encode())
            self.wfile.write(body[: behaviour.cut_after])
            if behaviour.chunked and behaviour.cut_after is None:
                self.wfile.write(b"\r\n0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def source(address: str, *names: str) -> Source:
    files = tuple(KnownFile(name=name, digest=md5(CONTENT)) for name in names or ("a.gz",))
    return Source(address=address, folder="set", files=files)


def test_a_plain_download_and_nothing_the_second_time(web: Behaviour, tmp_path: Path) -> None:
    web.files["b.gz"] = CONTENT
    paths = fetch(source(web.address, "a.gz", "b.gz"), tmp_path / "deep" / "down")
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == ["deep/down/set/a.gz", "deep/down/set/b.gz"]
    assert all(path.read_bytes() == CONTENT for path in paths)
    assert len(list((tmp_path / "deep" / "down" / "set").iterdir())) == 2  # no .part is left
    assert fetch(source(web.address, "a.gz", "b.gz"), tmp_path / "deep" / "down") == paths
    assert web.asked == [("/a.gz", None), ("/b.gz", None)]


def test_the_address_can_be_a_mirror(web: Behaviour, tmp_path: Path) -> None:
    web.files["mirror/a.gz"] = CONTENT
    fetch(source("http://127.0.0.1:1/"), tmp_path, address=web.address + "mirror")
    assert web.asked == [("/mirror/a.gz", None)]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_cut_download_is_resumed(web: Behaviour, tmp_path: Path, chunked: bool) -> None:
    web.chunked, web.cut_after = chunked, 200_000
    with pytest.raises(FetchFailed, match="the same command resumes"):
        fetch(source(web.address), tmp_path)
    part = tmp_path / "set" / "a.gz.part"
    have = part.stat().st_size
    assert 0 < have <= 200_000
    assert part.read_bytes() == CONTENT[:have]
    assert not (tmp_path / "set" / "a.gz").exists()
    web.cut_after = None
    [path] = fetch(source(web.address), tmp_path)
    assert path.read_bytes() == CONTENT
    assert web.asked[1:] == [("/a.gz", f"bytes={have}-")]
    assert not part.exists()


@pytest.mark.parametrize(
    ("name", "content", "behaviour", "asked"),
    [
        ("a.gz.part", CONTENT[:1000], {"ranges": False}, ["bytes=1000-"]),
        ("a.gz.part", CONTENT[:1000], {"shift": 5}, ["bytes=1000-", None]),
        ("a.gz.part", CONTENT, {}, [f"bytes={len(CONTENT)}-"]),
        ("a.gz.part", CONTENT + b"!", {}, [f"bytes={len(CONTENT) + 1}-", None]),
        ("a.gz", b"damaged", {}, [None]),
    ],
    ids=["no ranges", "wrong range", "complete part", "part too long", "damaged file"],
)
def test_an_earlier_download_is_completed_or_replaced(
    web: Behaviour, tmp_path: Path, name: str, content: bytes, behaviour: dict[str, int], asked: list[str | None]
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_bytes(content)
    for field_name, value in behaviour.items():
        setattr(web, field_name, value)
    [path] = fetch(source(web.address), tmp_path)
    assert path.read_bytes() == CONTENT
    assert [given for _, given in web.asked] == asked


def test_a_wrong_byte_never_gets_the_name(web: Behaviour, tmp_path: Path) -> None:
    wrong = b"\x01" + CONTENT[1:]
    web.files["a.gz"] = wrong
    with pytest.raises(FetchFailed):
        fetch(source(web.address), tmp_path)
    assert list((tmp_path / "set").iterdir()) == []
    web.files["a.gz"] = CONTENT
    assert fetch(source(web.address), tmp_path)[0].read_bytes() == CONTENT


def test_not_found_says_what_to_do_by_hand(web: Behaviour, tmp_path: Path) -> None:
    web.files.clear()
    with pytest.raises(FetchFailed, match=r"answered 404 .*/a\.gz: download .*the file into `\$REMANENCE_DATA/set/`"):
        fetch(source(web.address), tmp_path)


def test_no_network_says_what_to_do_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as probe:  # bound but not listening: the connection is refused
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}/"
        with pytest.raises(FetchFailed, match=rf"{address}a\.gz cannot be reached .*refused.*REMANENCE_DATA/set/"):
            fetch(source(address), tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with refused("missing-file", "root"):
        fetch(source("http://127.0.0.1:1/"), tmp_path / "file")


def test_the_bar_is_drawn_on_a_terminal_only(
    web: Behaviour, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(source(web.address), tmp_path / "quiet")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    fetch(source(web.address), tmp_path / "loud")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "a.gz" in shown.err


def packed(members: dict[str, bytes], link: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(info)
    return buffer.getvalue()


def archive_source(web: Behaviour, content: bytes, **files: bytes) -> Source:
    web.files["all.tar.gz"] = content
    known = tuple(
        KnownFile(name=f"{name}.bin", digest=hashlib.sha1(wanted).hexdigest(), algorithm="sha1")
        for name, wanted in files.items()
    )
    archive = KnownFile(name="all.tar.gz", digest=md5(content))
    return Source(address=web.address, folder="set", files=known, archive=archive)


def everything(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def test_only_expected_members_leave_the_archive(web: Behaviour, tmp_path: Path) -> None:
    members = {"set/one.bin": b"1", "set/two.bin": b"22", "../evil": b"x", "/evil": b"x", "set/readme.html": b"x"}
    root = tmp_path / "root"
    paths = fetch(archive_source(web, packed(members), one=b"1", two=b"22"), root)
    assert [path.read_bytes() for path in paths] == [b"1", b"22"]
    assert everything(tmp_path) == {"root", "root/set", "root/set/one.bin", "root/set/two.bin"}
    fetch(archive_source(web, packed(members), one=b"1", two=b"22"), root)
    assert len(web.asked) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (packed({"set/two.bin": b"22"}), "set/one.bin"),
        (packed({}, link="set/one.bin"), "not a regular file"),
        (packed({"set/one.bin": b"other"}), r"one\.bin in .* must have the sha1"),
        (b"no archive", "not the expected archive"),
        (packed({"set/one.bin": CONTENT})[:-300], "not the expected archive"),
    ],
)
def test_a_strange_archive_leaves_nothing_behind(web: Behaviour, tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(FetchFailed, match=message):
        fetch(archive_source(web, content, one=b"1"), tmp_path)
    assert everything(tmp_path) <= {"set", "all.tar.gz"}


def test_the_remedy_for_an_archive_names_its_files(web: Behaviour, tmp_path: Path) -> None:
    wanted = archive_source(web, b"", one=b"1")
    web.files.clear()
    with pytest.raises(FetchFailed, match=r"404 .*all\.tar\.gz.* its files into `\$REMANENCE_DATA/set/`"):
        fetch(wanted, tmp_path)
