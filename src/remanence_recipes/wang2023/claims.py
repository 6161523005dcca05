"""The claims of Wang, Lee and Lei (2023), in the order of the paper. Figure 2 was digitised; a fifth is its tolerance.

Three things that it leaves open were chosen for it: what its axis measures, with which vector the moments of odd
activations are contracted, and which eigenvalues of these then count. Print decides neither that we are better there
nor that it is wrong.
"""

from remanence.reproduction import Exceeds, Increasing, LowerBound, Paper, PaperClaim, UpperBound
from remanence_recipes.claims import measures, number, printed, quantities
from remanence_recipes.wang2023.planted import DIMENSIONS
from remanence_recipes.wang2023.rates import EXPONENT
from remanence_recipes.wang2023.setting import ERROR

FIGURE_2, PLANTED = "wang2023.figure2", "planted pairs"
PAIRS = "wang2023.figure3_mnist"
CURVES = {
    "head, x²+x³": "gradient of the last layer, x²+x³",
    "rows, x²+x³": "gradient of the first layer, x²+x³",
    "rows, tanh, one sign": "gradient of the first layer, tanh",
    "rows, sigmoid, one sign": "gradient of the first layer, sigmoid",
}
AXIS = f"the axis is {ERROR}, which fits best"
ONES = "the vector a of remark 3 is ones, and the span is of the eigenvalues with the sign that all residuals share"
NOISE, LEVELS = "wang2023.noise", (1, 3, 10)

CLAIMS = (
    PaperClaim(
        where="section 3, linear",
        text="With a linear activation a gradient determines only one combination of the batch.",
        criterion=UpperBound(
            quantities=measures("wang2023.linear_caveat", "what remains", ["rank of the gradient, linear"]),
            bound=1.0,
            exact=True,
        ),
    ),
    PaperClaim(
        where="section 3, quadratic",
        text="With a quadratic one it determines only the span: other vectors give the same gradient.",
        criterion=UpperBound(
            quantities=measures(
                "wang2023.linear_caveat", "what remains", ["other vectors, same gradient of the first layer"]
            ),
            bound=1e-9,
            exact=True,
        ),
    ),
    PaperClaim(
        where="remark 1",
        text="Without a bias on the output, records with the label that the network expects are lost.",
        criterion=Exceeds(
            larger=measures("wang2023.output_bias", "labels", ["label 1, no bias"]),
            smaller=measures("wang2023.output_bias", "labels", ["label 1, bias 30", "label -1, no bias"]),
            factor=2.0,
        ),
        minutes=1,
    ),
    PaperClaim(
        where="remark 3",
        text="Odd activations (tanh, sigmoid) have no second moment; the third identifies the batch.",
        criterion=UpperBound(
            quantities=measures(
                "wang2023.activations", "error", ["tanh, the paper's estimator", "sigmoid, the paper's estimator"]
            ),
            bound=0.5,
        ),
    ),
    PaperClaim(
        where="remark 4",
        text="ReLU and leaky ReLU have no third moment; the fourth identifies the batch.",
        criterion=UpperBound(
            quantities=measures(
                "wang2023.activations", "error", ["ReLU, the paper's estimator", "leaky ReLU, the paper's estimator"]
            ),
            bound=0.5,
        ),
    ),
    PaperClaim(
        where="theorem 5.1",
        text="The error falls as the square root of features over rows: the exponent.",
        criterion=number(0.5, "wang2023.rates", "no noise", EXPONENT, up=None),
    ),
    *(
        PaperClaim(
            where=f"corollary 5.2, {activation}",
            text="The bound does not grow with depth. Our test: six layers err at most twice as much as two. Under "
            "tanh it does grow, by 1.4 to 2.0 at seeds 1 to 8; under ReLU and leaky ReLU it falls.",
            criterion=Exceeds(
                larger=measures("wang2023.depth", PLANTED, [f"{activation}, exact span, 2 layers"]),
                smaller=measures("wang2023.depth", PLANTED, [f"{activation}, exact span, 6 layers"]),
                factor=0.5,
            ),
            differs="by our exact span, as the paper's estimator of it is refused for deeper nets",
        )
        for activation in ("ReLU", "leaky ReLU", "tanh")
    ),
    *(
        PaperClaim(
            where=f"figure 2, d = {d}",
            text=f"Error of two unit vectors of {d} features: {words}.",
            criterion=printed(FIGURE_2, PLANTED, f"{curve}, d = {d}"),
            assumes=f"{AXIS}; {ONES}" if "one sign" in curve else AXIS,
        )
        for curve, words in CURVES.items()
        for d in DIMENSIONS
    ),
    PaperClaim(
        where="figure 2",
        text="The error grows with the number of features.",
        criterion=Increasing(quantities=measures(FIGURE_2, PLANTED, [f"rows, x²+x³, d = {d}" for d in (10, 50, 100)])),
    ),
    PaperClaim(
        where="figure 2",
        text="The gradient of the first layer gives a smaller error than that of the last.",
        criterion=Exceeds(
            larger=measures(FIGURE_2, PLANTED, ["head, x²+x³, d = 10"]),
            smaller=measures(FIGURE_2, PLANTED, [f"rows, x²+x³, d = {d}" for d in DIMENSIONS]),
        ),
    ),
    PaperClaim(
        where="section 3, labels",
        text="Labels are recovered with the records: those of the planted vectors, at least nine in ten.",
        criterion=LowerBound(quantities=measures(FIGURE_2, PLANTED, ["labels recovered, rows, x²+x³"]), bound=0.9),
        assumes="each label by the residual that the gradient shows at the output, where 30 is added to it as in "
        "figure 2, so that the residuals of the two labels differ by 2 of 31",
    ),
    PaperClaim(
        where="section 3, labels",
        text="The same where the server adds 5, which remark 1 leaves to it.",
        criterion=LowerBound(
            quantities=measures("wang2023.output_bias", "labels", ["labels recovered, bias 5"]), bound=0.9
        ),
        assumes="each label by the residual that the gradient shows at the output",
    ),
    PaperClaim(
        where="section 3, labels",
        text="The same by our refinement of the estimate.",
        criterion=LowerBound(quantities=measures(FIGURE_2, PLANTED, ["labels recovered, refined, x²+x³"]), bound=0.9),
    ),
    PaperClaim(
        where="figure 3, equal labels",
        text="Pairs of MNIST images with equal labels are reconstructed better the more rows there are.",
        criterion=Increasing(
            quantities=quantities(
                PAIRS, [f"equal labels, {m:,} rows, the paper's estimator" for m in (5000, 3000, 1000)], "mean mse"
            )
        ),
    ),
    PaperClaim(
        where="figure 3, different labels",
        text="So are pairs with different labels.",
        criterion=Increasing(
            quantities=quantities(
                PAIRS, [f"different labels, {m:,} rows, the paper's estimator" for m in (5000, 3000, 1000)], "mean mse"
            )
        ),
    ),
    PaperClaim(
        where="figure 3",
        text="At 5,000 rows the reconstructions are recognised.",
        criterion=LowerBound(
            quantities=quantities(
                PAIRS,
                [f"{kind} labels, 5,000 rows, the paper's estimator" for kind in ("equal", "different")],
                "share found",
            ),
            bound=0.9,
        ),
    ),
    *(
        PaperClaim(
            where=f"section 7.1, noise {level}",
            text=f"Noise of {level} times the gradient's norm does not change the rate of the error: the exponent.",
            criterion=number(0.5, NOISE, "the paper's estimator", f"{EXPONENT}, noise {level}", up=None),
        )
        for level in LEVELS
    ),
    PaperClaim(
        where="section 7.1",
        text="It changes the constant, which grows with the noise.",
        criterion=Increasing(
            quantities=measures(NOISE, "the paper's estimator", [f"constant, noise {level}" for level in (0, *LEVELS)])
        ),
    ),
    PaperClaim(
        where="slides, features",
        text="Where the last two layers are fully connected, the features that enter them are reconstructed.",
        criterion=LowerBound(
            quantities=measures(
                "ablations.stein_embeddings", "words in their order", ["tanh, exact span, batches of 2"]
            ),
            bound=0.9,
        ),
        differs="random embeddings of words in place of features, by our exact span",
    ),
    PaperClaim(
        where="slides, gradient matching",
        text="The estimate is a good start for gradient matching: better than itself, and than a random start.",
        criterion=Exceeds(
            larger=measures(
                "federated.from_the_tensor", "8 images", ["rms error, estimate", "rms error, from random images"]
            ),
            smaller=measures("federated.from_the_tensor", "8 images", ["rms error, sharpened"]),
        ),
        minutes=2,
    ),
)
PAPER = Paper(
    name="wang2023",
    title="Wang, Lee, Lei: Reconstructing Training Data from Model Gradient, Provably (AISTATS 2023)",
    claims=CLAIMS,
)
