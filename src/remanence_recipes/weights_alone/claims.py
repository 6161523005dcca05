"""The claims of Haim et al. (2022) and of Buzaglo et al. (2023), which share the attack by KKT conditions.

Haim's numbers were read off pictures in the authors' notebooks. Buzaglo et al. print test accuracies alone; their other
claims are orderings.
"""

from remanence.reproduction import (
    AboveChance,
    Exceeds,
    Increasing,
    LowerBound,
    Paper,
    PaperClaim,
    UpperBound,
)
from remanence_recipes.buzaglo2023.published import SQUARED
from remanence_recipes.buzaglo2023.published_scores import ABOVE, BEST_SSIM, LISTED, OTHERS, PUBLISHED, ROWS, THIRTIETH
from remanence_recipes.claims import labels, measures, number, printed, quantities, quantity
from remanence_recipes.weights_alone.evaluation import ACCURACY, FOUND

AT_LENGTH = "buzaglo2023.published"
TWO, TEN = (
    tuple(f"{kind}, victim {i}" if i > 1 else kind for i in (1, 2, 3)) for kind in ("two groups", "ten classes")
)
COUNT = f"{ABOVE}, {PUBLISHED}"
BY_HELD_OUT = f"{OTHERS}, {PUBLISHED}"
RAN = TWO[:2]  # the victims that have a result: each decides alone
TWO_RUNS = ("restarts", "victims")  # the claim is about the two published runs on one victim
FIGURE_3, FIGURE_4 = "buzaglo2023.figure3_classes", "buzaglo2023.figure4_weight_decay"
OF_EACH = labels(FIGURE_3, "", " of each")
DIGITS = "odd and even digits"

HAIM = (
    PaperClaim(
        where="CIFAR-10 notebook, cell 4",
        weight=3,
        text="Two groups, 500 images, two runs pooled: images with SSIM above 0.4, a count, within a quarter.",
        criterion=printed(AT_LENGTH, TWO, COUNT).within(0.25),  # a count of 17 has a standard deviation of 4
        unaffected_by=TWO_RUNS,
        minutes=23,
    ),
    PaperClaim(
        where="CIFAR-10 notebook, cell 4",
        weight=3,
        text="The best SSIM of them.",
        criterion=number(0.637, AT_LENGTH, TWO, f"best SSIM, {PUBLISHED}", up=True),
        unaffected_by=TWO_RUNS,
        minutes=23,
    ),
    PaperClaim(
        where="CIFAR-10 notebook, cell 4",
        weight=3,
        text="The thirtieth best SSIM of them.",
        criterion=number(0.322, AT_LENGTH, TWO, f"{THIRTIETH}, {PUBLISHED}", up=True),
        unaffected_by=TWO_RUNS,
        minutes=23,
    ),
    PaperClaim(
        where="CIFAR-10 notebook, cell 6",
        text="Rows of the first layer in place of reconstructions: fewer images with SSIM above 0.4 (4 are printed).",
        criterion=Exceeds(
            larger=(quantity(AT_LENGTH, TWO[1:], COUNT),), smaller=(quantity(AT_LENGTH, TWO[1:], f"{ABOVE}, {ROWS}"),)
        ),
        unaffected_by=TWO_RUNS,
        minutes=12,
    ),
    *(
        PaperClaim(
            where="CIFAR-10 notebook, cell 6",
            text=f"Rows of the first layer, a baseline: {words}.",
            criterion=number(value, AT_LENGTH, TWO[1:], f"{name}, {ROWS}", up=None),
            unaffected_by=TWO_RUNS,
            minutes=12,
        )
        for value, name, words in (
            (0.611, BEST_SSIM, "the best SSIM"),
            (0.235, THIRTIETH, "the thirtieth best SSIM"),
        )
    ),
    PaperClaim(
        where="main claim",
        weight=3,
        text="Training images of a binary classifier are reconstructed from its weights alone: images listed.",
        criterion=LowerBound(quantities=quantities(AT_LENGTH, RAN, f"{LISTED}, {PUBLISHED}"), bound=1.0, exact=True),
        unaffected_by=TWO_RUNS,
        minutes=23,
    ),
    PaperClaim(
        where="section on margins",
        text="The images on the margin are the ones that are reconstructed: rank correlation of SSIM and margin.",
        criterion=UpperBound(
            quantities=quantities(AT_LENGTH, RAN, f"SSIM against the margin, {PUBLISHED}"), bound=0.0, surely=True
        ),
        unaffected_by=TWO_RUNS,
        minutes=23,
    ),
    PaperClaim(
        where="MNIST notebook",
        text="Odd and even digits: the best SSIM.",
        criterion=number(0.239, AT_LENGTH, DIGITS, f"{BEST_SSIM}, {PUBLISHED}", up=True),
        unaffected_by=TWO_RUNS,
        minutes=8,
    ),
    PaperClaim(
        where="MNIST notebook",
        text="The thirtieth best SSIM of them.",
        criterion=number(0.143, AT_LENGTH, DIGITS, f"{THIRTIETH}, {PUBLISHED}", up=True),
        unaffected_by=TWO_RUNS,
        minutes=8,
    ),
    *(
        PaperClaim(
            where="MNIST notebook",
            text=f"Rows of the first layer, a baseline: {words}.",
            criterion=number(value, AT_LENGTH, DIGITS, f"{name}, {ROWS}", up=None),
            unaffected_by=TWO_RUNS,
            minutes=8,
        )
        for value, name, words in (
            (0.187, BEST_SSIM, "the best SSIM"),
            (0.068, THIRTIETH, "the thirtieth best SSIM"),
        )
    ),
    PaperClaim(
        where="MNIST",
        text="Odd and even digits are reconstructed from the weights alone.",
        criterion=AboveChance(quantity=quantity(AT_LENGTH, DIGITS, f"{FOUND}, {PUBLISHED}")),
        unaffected_by=TWO_RUNS,
        minutes=8,
    ),
)
BUZAGLO = (
    PaperClaim(
        where="section 4, test accuracy",
        text="Accuracy of the classifier of two groups, 500 images.",
        criterion=printed(AT_LENGTH, TWO, ACCURACY),
        differs="tested on the natural mix of 62 % to 38 %, the paper on as many of each group",
        unaffected_by=TWO_RUNS,
        minutes=23,
    ),
    PaperClaim(
        where="section 4, test accuracy",
        text="Accuracy of the classifier of ten classes, 500 images.",
        criterion=printed(AT_LENGTH, TEN, ACCURACY),
        unaffected_by=TWO_RUNS,
        minutes=23,
    ),
    PaperClaim(
        where="figure 1",
        text="The best reconstruction of each class resembles its training image.",
        criterion=AboveChance(
            quantity=quantity("buzaglo2023.figure1", "best of each class", "best SSIM of a class, KKT")
        ),
        minutes=23,
    ),
    PaperClaim(
        where="figure 2",
        weight=3,
        text="Ten classes leak more than two groups, of equally many images: images with SSIM above 0.4.",
        criterion=Exceeds(
            larger=(quantity(AT_LENGTH, TEN, COUNT),),
            smaller=(quantity(AT_LENGTH, TWO, COUNT),),
        ),
        unaffected_by=TWO_RUNS,
        minutes=42,
    ),
    PaperClaim(
        where="figure 3, classes",
        weight=2,
        text="The more classes, the more is reconstructed.",
        criterion=AboveChance(
            quantity=quantity(
                FIGURE_3, (*OF_EACH, "classes by records of each"), "difference of share found, 10 over 2 classes, KKT"
            )
        ),
        minutes=30,
    ),
    PaperClaim(
        where="figure 3, images",
        weight=2,
        text="The more images of each class, the more of them are reconstructed.",
        criterion=Increasing(quantities=quantities(FIGURE_3, OF_EACH, "records found, 10 classes, KKT")),
        minutes=30,
    ),
    PaperClaim(
        where="figure 4, C = 10",
        weight=2,
        text="Weight decay from standard initial weights leaks more than small initial weights without it.",
        criterion=AboveChance(
            quantity=quantity(
                FIGURE_4,
                "weight decay over none",
                "difference of share found, decay 0.003 over no decay, small first layer, KKT",
            )
        ),
        minutes=12,
    ),
    PaperClaim(
        where="figure 4, baseline",
        text="Without weight decay from standard initial weights nothing is reconstructed.",
        criterion=UpperBound(
            quantities=(quantity(FIGURE_4, "weight decay over none", "share found, no decay, KKT"),), bound=0.01
        ),
        minutes=12,
    ),
    PaperClaim(
        where="figure 4, baseline, C = 2",
        text="Nor for two classes.",
        criterion=UpperBound(
            quantities=(quantity(FIGURE_4, "weight decay over none, two classes", "share found, no decay, KKT"),),
            bound=0.01,
        ),
        minutes=9,
    ),
    PaperClaim(
        where="figure 4, C = 2",
        text="The same ordering for two classes.",
        criterion=AboveChance(
            quantity=quantity(
                FIGURE_4,
                "weight decay over none, two classes",
                "difference of share found, decay 0.003 over no decay, small first layer, KKT",
            )
        ),
        minutes=9,
    ),
    PaperClaim(
        where="figure 5",
        weight=2,
        text="With weight decay images near the boundary are the ones that are reconstructed: rank correlation of SSIM "
        "and margin.",
        criterion=UpperBound(
            quantities=measures("buzaglo2023.figure5_margins", "margins", ["SSIM against the margin, decay 0.01"]),
            bound=0.0,
            surely=True,
        ),
        minutes=12,
    ),
    PaperClaim(
        where="section 5",
        text="It works where the training error is not zero.",
        criterion=AboveChance(
            quantity=quantity("buzaglo2023.figure5_margins", "training error above zero", f"{FOUND}, KKT")
        ),
        minutes=5,
    ),
    PaperClaim(
        where="figure 6",
        weight=2,
        text="CIFAR-100, 5,000 images, width 10,000: a few dozen (of them, at least 24) are reconstructed; ours, found "
        "by Stationarity.",
        criterion=LowerBound(
            quantities=quantities(
                "buzaglo2023.figure6_cifar100",
                ["5,000 images, width 10,000"],
                f"{FOUND}, 5000 images, Stationarity",
            ),
            bound=24 / 5000,
        ),
        minutes=20,
    ),
    PaperClaim(
        where="figure 7",
        text="An SSIM above 0.4 marks a good reconstruction. Our test: the candidates of the published runs reach it "
        "for at most 1 % of held-out images; at seed 5, 15 and 23 of 500 training images do. Unrelated photographs in "
        "place of candidates do so for 7 to 12 % of training images (buzaglo2023.figure7_threshold).",
        criterion=UpperBound(quantities=quantities(AT_LENGTH, (TWO[0], TEN[0]), BY_HELD_OUT), bound=0.01, surely=True),
        unaffected_by=TWO_RUNS,
        minutes=42,
    ),
    PaperClaim(
        where="figure 8",
        weight=2,
        text="The more classes, with 500 images in all, the more are reconstructed.",
        criterion=AboveChance(
            quantity=quantity(
                "buzaglo2023.figure8_fixed_500",
                "classes, records fixed",
                "difference of share found, 10 over 2 classes, KKT",
            )
        ),
        minutes=14,
    ),
    PaperClaim(
        where="general losses",
        text="Regression leaks too, with multipliers of either sign.",
        criterion=AboveChance(quantity=quantity("haim2022.regression", "weight decay", f"{FOUND}, KKT")),
        minutes=12,
    ),
    PaperClaim(
        where="footnote 1",
        text="Multipliers as a² plus a smallest one work as the hinge does: at least half as many images are listed.",
        criterion=Exceeds(
            larger=(quantity(AT_LENGTH, SQUARED, f"{LISTED}, {PUBLISHED}"),),
            smaller=(quantity(AT_LENGTH, TWO, f"{LISTED}, {PUBLISHED}"),),
            factor=0.5,
        ),
        unaffected_by=TWO_RUNS,
        minutes=29,
    ),
)
PAPERS = (
    Paper(
        name="haim2022",
        title="Haim, Vardi, Yehudai, Shamir, Irani: Reconstructing Training Data from Trained Neural Networks "
        "(NeurIPS 2022)",
        claims=HAIM,
    ),
    Paper(
        name="buzaglo2023",
        title="Buzaglo, Haim, Yehudai, Vardi, Oz, Nikankin, Irani: Reconstructing Training Data from Multiclass Neural "
        "Networks (2023)",
        claims=BUZAGLO,
    ),
)
