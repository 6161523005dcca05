"""The claims of Shahin Shamsabadi, Hayes, Balle and Weller (2023), in the order of the paper.

The initial weights of its four runs are not published: our means over initialisations stand against the means of the
four.
"""

from remanence.reproduction import AboveChance, Exceeds, Paper, PaperClaim, UpperBound
from remanence_recipes.claims import labels, measures, number, printed, quantities, quantity
from remanence_recipes.mnemonist2023.figures import (
    AGREEMENT,
    BY_SIGMOID,
    COEFFICIENTS,
    GAIN,
    LARGEST,
    OF_FEW,
    OF_MANY,
    RELU,
    SELECTED,
    SIGMOID,
    SMALLEST,
    TABLE_3,
    WINS,
)

MANY, STORAGE = "mnemonist2023.figure1_initialisations", "mnemonist2023.figure5_storage"
WITH_ALL, ERROR = "mnemonist2023.table3_shadows", "mean mae+mse"
START = "many first weights"

CLAIMS = (
    PaperClaim(
        where="figure 1, ReLU",
        text="Over 20 initialisations the error of RecoNN lies between 0.05 and 0.29: the smallest.",
        criterion=number(0.05, MANY, START, SMALLEST, up=None),
        minutes=22,
    ),
    PaperClaim(
        where="figure 1, ReLU",
        text="The largest of them.",
        criterion=number(0.29, MANY, START, LARGEST, up=None),
        minutes=22,
    ),
    PaperClaim(
        where="figure 1, sigmoid",
        text="With sigmoid it is about 0.03 for all of them.",
        criterion=printed(MANY, START, SIGMOID),
        minutes=22,
    ),
    PaperClaim(
        where="figure 1",
        text="ReLU networks are reconstructed worse than sigmoid ones.",
        criterion=Exceeds(larger=measures(MANY, START, [RELU]), smaller=measures(MANY, START, [SIGMOID])),
        minutes=22,
    ),
    PaperClaim(
        where="figure 2",
        text="Single images are reconstructed better with sigmoid: four are shown, 0.05 to 0.31 and 0.02 to 0.03.",
        criterion=AboveChance(quantity=quantity("mnemonist2023.figure2_activations", "ReLU and sigmoid", BY_SIGMOID)),
        minutes=2,
    ),
    PaperClaim(
        where="table 3, RecoNN",
        weight=3,
        text="Mean error (MAE + MSE) of RecoNN over the four runs.",
        criterion=printed(MANY, START, RELU),
        minutes=22,
    ),
    PaperClaim(
        where="table 3, Mnemonist-RecoNN",
        weight=3,
        text="Mean error of Mnemonist-RecoNN over the four runs.",
        criterion=printed(MANY, START, SELECTED),
        minutes=22,
    ),
    PaperClaim(
        where="table 3, RecoNN",
        weight=3,
        text="The same with the paper's 40,000 shadow models.",
        criterion=number(sum(TABLE_3[RELU]) / 4, WITH_ALL, labels(WITH_ALL, "run", ", RecoNN"), ERROR, up=False),
        minutes=5,
    ),
    PaperClaim(
        where="table 3, Mnemonist-RecoNN",
        weight=3,
        text="The same with the paper's 40,000 shadow models.",
        criterion=number(
            sum(TABLE_3[SELECTED]) / 4, WITH_ALL, labels(WITH_ALL, "run", ", Mnemonist-RecoNN"), ERROR, up=False
        ),
        minutes=5,
    ),
    PaperClaim(
        where="table 3, gain",
        weight=3,
        text="Relative gain of Mnemonist-RecoNN: 14.8, 11.8, 19.6 and 11.9 %.",
        criterion=printed(MANY, START, GAIN),
        minutes=22,
    ),
    PaperClaim(
        where="table 3, four of four",
        text="It gains in every run.",
        criterion=printed(MANY, START, WINS),
        minutes=22,
    ),
    PaperClaim(
        where="figure 5",
        text="With ReLU fewer rows of the first layer store a target than with sigmoid.",
        criterion=Exceeds(
            larger=quantities(STORAGE, ["sigmoid"], "rows that store a record, step 1"),
            smaller=quantities(STORAGE, ["ReLU"], "rows that store a record, step 1"),
        ),
    ),
    *(
        PaperClaim(
            where=f"figure 5, step {step}",
            text="The same later in the training.",
            criterion=Exceeds(
                larger=quantities(STORAGE, ["sigmoid"], f"rows that store a record, step {step}"),
                smaller=quantities(STORAGE, ["ReLU"], f"rows that store a record, step {step}"),
            ),
        )
        for step in (30, 40)
    ),
    PaperClaim(
        where="footnote 3",
        text="With sigmoid hardly any target, 2 of 1,000, is stored by no row.",
        criterion=UpperBound(
            quantities=(quantity(STORAGE, "sigmoid", "records that no row stores"),), bound=0.002, printed=0.002
        ),
    ),
    PaperClaim(
        where="figure 7",
        text="Rows that store more targets help the reconstruction more.",
        criterion=AboveChance(quantity=quantity("mnemonist2023.figure7_importance", "importance of rows", AGREEMENT)),
        minutes=6,
    ),
    PaperClaim(
        where="section 5.2",
        text="A row that stores over 90 % of the targets has a lower coefficient than one that stores under 25 %.",
        criterion=AboveChance(
            quantity=quantity("mnemonist2023.figure7_importance", "importance of rows", COEFFICIENTS)
        ),
        minutes=6,
    ),
    *(
        PaperClaim(
            where="section 5.2",
            text=f"The coefficient of a row that stores {words} of the targets; ours, of all such rows.",
            criterion=number(value, "mnemonist2023.figure7_importance", "importance of rows", name, up=None),
            minutes=6,
        )
        for value, name, words in ((-0.03, OF_MANY, "over 90 %"), (0.01, OF_FEW, "under 25 %"))
    ),
    PaperClaim(
        where="figure 9",
        text="Single images are reconstructed better by Mnemonist-RecoNN.",
        criterion=AboveChance(
            quantity=quantity("mnemonist2023.figure9_gallery", "side by side", "targets read better")
        ),
        minutes=2,
    ),
)
PAPER = Paper(
    name="mnemonist2023",
    title="Shahin Shamsabadi, Hayes, Balle, Weller: Mnemonist, Locating Model Parameters that Memorize (UAI 2023)",
    claims=CLAIMS,
)
