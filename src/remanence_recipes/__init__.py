"""Recipes: one function per figure or table, and the demo. A recipe's first docstring line is what `list` shows."""

from remanence.experiments import Recipe
from remanence_recipes import demo
from remanence_recipes.ablations import batch_size, defenses, embeddings, mnemonist, query_point, reconn
from remanence_recipes.balle2022 import on_cifar10, on_mnist
from remanence_recipes.buzaglo2023 import cifar100, classes, figures, gallery, margins, span, threshold
from remanence_recipes.federated import counts, exact, searches
from remanence_recipes.haim2022 import binary
from remanence_recipes.mnemonist2023 import figures as mnemonist_figures
from remanence_recipes.tian2025 import linear, mlps, resnets, scaling, unknowns
from remanence_recipes.wang2023 import images, planted
from remanence_recipes.wang2023 import rates as wang_rates

RECIPES: dict[str, Recipe] = {
    "balle2022.glm": on_mnist.glm,
    "balle2022.mnist": on_mnist.mnist,
    "balle2022.table3": on_mnist.table3,
    "balle2022.notebook": on_mnist.notebook,
    "balle2022.cifar10": on_cifar10.cifar10,
    "balle2022.figure10_membership": on_mnist.figure10_membership,
    "balle2022.figure11_transfer": on_mnist.figure11_transfer,
    "balle2022.figure12_pretrained": on_mnist.figure12_pretrained,
    "balle2022.figure13_gallery": on_mnist.figure13_gallery,
    "balle2022.figure14_dp": on_cifar10.figure14_dp,
    "balle2022.dp_mnist": on_mnist.dp_mnist,
    "balle2022.figure15_epochs": on_mnist.figure15_epochs,
    "balle2022.figure16_zero_gradients": on_cifar10.figure16_zero_gradients,
    "mnemonist2023.figure1_initialisations": mnemonist_figures.figure1_initialisations,
    "mnemonist2023.table3": mnemonist_figures.table3,
    "mnemonist2023.figure5_storage": mnemonist_figures.figure5_storage,
    "mnemonist2023.figure7_importance": mnemonist_figures.figure7_importance,
    "mnemonist2023.figure9_gallery": mnemonist_figures.figure9_gallery,
    "wang2023.figure2": planted.figure2,
    "wang2023.figure3_mnist": images.figure3_mnist,
    "wang2023.rates": wang_rates.rates,
    "wang2023.noise": wang_rates.noise,
    "wang2023.linear_caveat": planted.linear_caveat,
    "wang2023.activations": planted.activations,
    "wang2023.depth": planted.depth,
    "wang2023.cifar10": images.cifar10,
    "haim2022.cifar10_binary": binary.cifar10_binary,
    "haim2022.mnist_binary": binary.mnist_binary,
    "haim2022.regression": binary.regression,
    "buzaglo2023.figure1": gallery.figure1,
    "buzaglo2023.figure2_binary_vs_multiclass": figures.figure2_binary_vs_multiclass,
    "buzaglo2023.figure3_classes": classes.figure3_classes,
    "buzaglo2023.figure4_weight_decay": figures.figure4_weight_decay,
    "buzaglo2023.figure5_margins": margins.figure5_margins,
    "buzaglo2023.figure6_cifar100": cifar100.figure6_cifar100,
    "buzaglo2023.figure7_threshold": threshold.figure7_threshold,
    "buzaglo2023.figure8_fixed_500": classes.figure8_fixed_500,
    "buzaglo2023.span": span.span,
    "tian2025.table_linearity": linear.table_linearity,
    "tian2025.mlp_100": mlps.mlp_100,
    "tian2025.mlp_500": mlps.mlp_500,
    "tian2025.baselines": mlps.baselines,
    "tian2025.resnet_20": resnets.resnet_20,
    "tian2025.resnet_50": resnets.resnet_50,
    "tian2025.resnet_120": resnets.resnet_120,
    "tian2025.scaling": scaling.scaling,
    "tian2025.unknown_learning_rate": unknowns.unknown_learning_rate,
    "tian2025.unknown_size": unknowns.unknown_size,
    "tian2025.unknown_labels": mlps.unknown_labels,
    "federated.architectures": searches.architectures,
    "federated.local_steps": searches.local_steps,
    "federated.first_layer": exact.first_layer,
    "federated.from_the_tensor": exact.from_the_tensor,
    "federated.labels": counts.labels,
    "ablations.mnemonist_rates": mnemonist.rates,
    "ablations.reconn_settings": reconn.settings,
    "ablations.reconn_shadows": reconn.shadows,
    "ablations.gradient_defenses": defenses.gradient_defenses,
    "ablations.gradient_query_point": query_point.gradient_query_point,
    "ablations.stein_batch_size": batch_size.stein_batch_size,
    "ablations.stein_embeddings": embeddings.stein_embeddings,
    "demo.digits": demo.digits,
}
