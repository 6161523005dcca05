"""The claims of Tian et al. (2025), in the order of the poster. That of 20 images was measured on a picture of the
authors' repository."""

from remanence.reproduction import Exceeds, Increasing, LowerBound, Paper, PaperClaim
from remanence_recipes.claims import labels, measures, number, printed, quantities, quantity
from remanence_recipes.tian2025.unknowns import FACTORS, PRESET

SSIM, LINEARITY = "mean normalised_ssim", "tian2025.table_linearity"
RATES = "tian2025.resnet_learning_rate"
WIDTHS = (200, 500, 2000, 4000)
NON_LINEAR, NEAREST = "tian2025.resnet_nonlinear", "1,000 for 100 epochs"  # its M_lin is 0.62 at seed 1, which chose it
LINEAR = "the fine-tuning is nearly linear (M_lin 0.93 under a head that is not the attacked one, the paper's 0.60)"
AT_20 = "of 20 images the fine-tuning has M_lin 0.72 and 0.85 at seeds 3 and 4, the paper's 0.60"
AT_50 = "the authors' pre-trained weights are not public; M_lin is 0.62, the paper's 0.60"

CLAIMS = (
    *(
        PaperClaim(
            where=f"M_lin, MLP {width}",
            text=f"Linearity index of an MLP of width {width:,}.",
            criterion=printed(LINEARITY, label, f"MLP {width}"),
            assumes=f"{records} images at full batch",
        )
        for records, label in ((100, "linearity"), (20, "linearity, 20 images"))
        for width in WIDTHS
    ),
    PaperClaim(
        where="M_lin, ResNet-18",
        text="Linearity index of ResNet-18.",
        criterion=printed(LINEARITY, "linearity, ResNet-18", "ResNet"),
        differs="the authors' pre-trained weights are not public, and it follows from them: 0.3 to 0.98 by ours",
        minutes=6,
    ),
    PaperClaim(
        where="M_lin, widths",
        text="The wider the MLP, the more linear its training.",
        criterion=Increasing(quantities=measures(LINEARITY, "linearity", [f"MLP {width}" for width in WIDTHS])),
    ),
    PaperClaim(
        where="MLP, 100 images",
        text="SSIM of SimuDy on 100 images.",
        criterion=printed("tian2025.mlp_100", "MLP, 100 images, image scales", SSIM),
    ),
    PaperClaim(
        where="MLP, 100 images",
        text="The same by SimuDy exactly as published: one image scale, the authors' schedule, 30,000 iterations.",
        criterion=printed("tian2025.mlp_published", "MLP, 100 images, as published", SSIM),
        minutes=2,
    ),
    PaperClaim(
        where="MLP, baselines",
        text="SimuDy does better than a linear theory at the final weights (Buzaglo).",
        criterion=Exceeds(
            larger=quantities("tian2025.baselines", ["SimuDy"], SSIM),
            smaller=quantities("tian2025.baselines", ["gradients at the end"], SSIM),
        ),
    ),
    PaperClaim(
        where="MLP, baselines",
        text="SimuDy does better than a linear theory at initial and final weights (Loo).",
        criterion=Exceeds(
            larger=quantities("tian2025.baselines", ["SimuDy"], SSIM),
            smaller=quantities("tian2025.baselines", ["gradients at start and end"], SSIM),
        ),
    ),
    PaperClaim(
        where="ResNet-18, setting",
        weight=3,
        text="The attacked fine-tuning is as far from linear as the paper's: M_lin.",
        criterion=printed(NON_LINEAR, labels(NON_LINEAR, "SimuDy, 20 images", NEAREST), "M_lin"),
        unaffected_by=("iterations",),  # of the attack
        minutes=8,
    ),
    PaperClaim(
        where="ResNet-18, 20 images",
        weight=3,
        text="SSIM of SimuDy on 20 images.",
        criterion=printed(NON_LINEAR, labels(NON_LINEAR, "SimuDy, 20 images", NEAREST), SSIM),
        differs=AT_20,
        minutes=8,
    ),
    PaperClaim(
        where="ResNet-18, 20 images",
        weight=3,
        text="The same by SimuDy as published, but for when gradients are clipped.",
        criterion=printed("tian2025.resnet_published", "ResNet, 20 images, as published", SSIM),
        differs=AT_20,
        minutes=22,
    ),
    PaperClaim(
        where="ResNet-18, 50 images",
        weight=3,
        text="SSIM of SimuDy on 50 images.",
        criterion=printed(NON_LINEAR, labels(NON_LINEAR, "SimuDy, 50 images", NEAREST), SSIM),
        differs=AT_50,
        minutes=8,
    ),
    *(
        PaperClaim(
            where="ResNet-18, baselines",
            weight=3,
            text=f"Where training is not linear, a linear theory at {theory} falls behind: SimuDy's SSIM over its.",
            criterion=Exceeds(
                larger=(quantity(NON_LINEAR, labels(NON_LINEAR, "SimuDy, 20 images", NEAREST), SSIM),),
                smaller=(quantity(NON_LINEAR, labels(NON_LINEAR, f"{made}, 20 images", NEAREST), SSIM),),
                beyond_chance=True,
            ),
            differs=AT_20,
            minutes=16,
        )
        for theory, made in (
            ("the final weights (Buzaglo)", "gradients at the end"),
            ("initial and final weights (Loo)", "gradients at start and end"),
        )
    ),
    PaperClaim(
        where="review, 120 images",
        text="120 images of ResNet-18 are still reconstructed: SSIM as of the 50 that are printed.",
        criterion=LowerBound(
            quantities=quantities("tian2025.resnet_120", ["ResNet, 120 images"], SSIM),
            bound=0.1982,
            less_effort_suffices=True,
        ),
        differs=LINEAR,
        minutes=3,
    ),
    PaperClaim(
        where="unknown labels",
        text="Labels need not be known: balanced ones in any order suffice.",
        criterion=LowerBound(
            quantities=quantities("tian2025.unknown_labels", ["MLP, 100 images, labels taken to be balanced"], SSIM),
            bound=0.3374,
            less_effort_suffices=True,
        ),
        minutes=1,
    ),
    PaperClaim(
        where="unknown learning rate",
        text="The objective of the first steps over a grid identifies the learning rate of an MLP.",
        criterion=LowerBound(
            quantities=(quantity("tian2025.unknown_learning_rate", "learning rate", "exact"),),
            bound=0.9,
            less_effort_suffices=True,
        ),
        minutes=4,
    ),
    PaperClaim(
        where="unknown learning rate",
        text="The same on ResNet-18, with SSIM highest at the true one, which must lie above chance.",
        criterion=Exceeds(
            larger=measures(RATES, "learning rates", ["SSIM, 1 of the learning rate"]),
            smaller=measures(
                RATES, "learning rates", [f"SSIM, {each:g} of the learning rate" for each in FACTORS if each != 1]
            ),
            beyond_chance=True,
        ),
        differs=AT_20,
        minutes=10,
    ),
    PaperClaim(
        where="unknown batch size",
        text="A preset batch size suffices: SSIM of 100 images as printed for a known one.",
        criterion=LowerBound(
            quantities=measures("tian2025.unknown_batch_size", "batch size", [PRESET]),
            bound=0.3374,
            less_effort_suffices=True,
        ),
        minutes=3,
    ),
    PaperClaim(
        where="unknown number, SSIM",
        text="60 candidates for 40 images of ResNet-18: SSIM of the 40 that contribute most.",
        criterion=printed("tian2025.unknown_size", "number of records", "mean SSIM of those kept"),
        differs=LINEAR,
    ),
    PaperClaim(
        where="unknown number, norms",
        text="Mean norm of the summed gradients of matched candidates over that of the others.",
        criterion=printed("tian2025.unknown_size", "number of records", "contribution, matched over unmatched"),
        differs=LINEAR,
        minutes=4,
    ),
    PaperClaim(
        where="unknown number, ranges",
        text="Their ranges do not overlap: every matched candidate contributes more than every unmatched one.",
        criterion=number(
            1.0,
            "tian2025.unknown_size",
            "number of records",
            "matched contribute more than unmatched",
            up=True,
            rtol=0.01,
        ),
        differs=LINEAR,
        minutes=4,
    ),
    PaperClaim(
        where="more images",
        text="The more images, the lower their SSIM.",
        criterion=Increasing(
            quantities=quantities("tian2025.scaling", [f"MLP, images {n}" for n in (200, 100, 50, 20)], SSIM)
        ),
    ),
)
PAPER = Paper(
    name="tian2025",
    title="Tian et al.: Simulating Training Dynamics to Reconstruct Training Data from Deep Neural Networks "
    "(ICLR 2025)",
    claims=CLAIMS,
)
