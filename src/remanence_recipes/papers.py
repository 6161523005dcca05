"""The five works with all their claims: Haim et al. (2022) and Buzaglo et al. (2023) are one method, and two papers."""

from remanence.reproduction import Paper
from remanence_recipes.balle2022 import claims as balle2022
from remanence_recipes.mnemonist2023 import claims as mnemonist2023
from remanence_recipes.tian2025 import claims as tian2025
from remanence_recipes.wang2023 import claims as wang2023
from remanence_recipes.weights_alone import claims as weights_alone

PAPERS: tuple[Paper, ...] = (
    balle2022.PAPER,
    mnemonist2023.PAPER,
    wang2023.PAPER,
    *weights_alone.PAPERS,
    tian2025.PAPER,
)
