# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The layout of the authors' CRATE checkpoints, read and written."""

import argparse
import math
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file
from transformers import ViTImageProcessorPil
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from sparsight.configuration.configuration_crate import CrateConfig
from sparsight.modeling.modeling_crate import CrateForImageClassification


# The authors' module names and ours; `{}` is the index of the layer.
_MODULES = {
    "to_patch_embedding.1": "crate.embeddings.patch_embeddings.layernorm_before",
    "to_patch_embedding.2": "crate.embeddings.patch_embeddings.projection",
    "to_patch_embedding.3": "crate.embeddings.patch_embeddings.layernorm_after",
    "transformer.layers.{}.0.norm": "crate.layers.{}.layernorm_before",
    "transformer.layers.{}.0.fn.qkv": "crate.layers.{}.attention.subspace_proj",
    "transformer.layers.{}.0.fn.to_out.0": "crate.layers.{}.attention.o_proj",
    "transformer.layers.{}.1.norm": "crate.layers.{}.layernorm_after",
    "transformer.layers.{}.1.fn": "crate.layers.{}.ista",
    "mlp_head.0": "layernorm",
    "mlp_head.1": "classifier",
}
_PARAMETERS = {
    "pos_embedding": "crate.embeddings.position_embeddings",
    "cls_token": "crate.embeddings.cls_token",
}
# What the authors' code has fixed, so that a checkpoint in its layout cannot have it otherwise.
_FIXED_BY_AUTHORS = {"nonnegative": True, "layer_norm_eps": 1e-5}
# What training scripts put a state dict under, and what DDP and torch.compile put before its names.
_WRAPPINGS = ("state_dict", "model_state_dict", "model")
_PREFIXES = re.compile(r"^(module\.|_orig_mod\.)+")


class ConversionError(ValueError):
    """An input that cannot be converted; the message names the argument and the way out."""


def _official_names(config: CrateConfig) -> dict[str, str]:
    """The authors' name of every parameter that a model of `config` has, by our name."""
    with torch.device("meta"):
        parameters = CrateForImageClassification(config).state_dict()
    ours_to_official = {ours: official for official, ours in _MODULES.items()}
    names = {ours: official for official, ours in _PARAMETERS.items()}
    for name in parameters.keys() - names.keys():
        module, _, parameter = name.rpartition(".")
        (index,) = re.findall(r"\d+", module) or ("",)
        names[name] = f"{ours_to_official[re.sub(r'[0-9]+', '{}', module)].format(index)}.{parameter}"
    return names


def listed(keys: Iterable[str], limit: int = 12) -> str:
    """The first of these keys, as part of a message of one line."""
    keys = sorted(keys)
    more = f" and {len(keys) - limit} more" if len(keys) > limit else ""
    return ", ".join((key if key.isprintable() else ascii(key))[:100] for key in keys[:limit]) + more


def load_official_checkpoint(path: str | Path) -> dict[str, torch.Tensor]:
    """Reads a checkpoint in the authors' layout, without what wraps the state dict and without `module.` in its names.

    Args:
        path: a `.safetensors` file or a torch pickle, which is loaded with `weights_only=True`. The state dict may lie
            under `state_dict`, `model_state_dict` or `model`.

    Raises:
        ConversionError: if there is no such file, or it holds anything but named tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise ConversionError(f"--checkpoint {path}: no such file; give the path of a .pth or .safetensors file")
    try:
        if path.suffix == ".safetensors":
            checkpoint = load_file(path)
        else:
            # Training scripts save their arguments too.
            with torch.serialization.safe_globals([argparse.Namespace]):
                checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of any kind: torch parses a cut or altered file until something does not fit
        raise ConversionError(
            f"--checkpoint {path}: cannot be read as a file of tensors; give a whole .pth that "
            "`torch.load(weights_only=True)` accepts, or a .safetensors file"
        ) from error
    checkpoint = _unwrap(checkpoint)
    if not isinstance(checkpoint, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in checkpoint.items()
    ):
        raise ConversionError(
            f"--checkpoint {path}: holds no state dict; give a file with tensors by name, or with them under "
            f"{' or '.join(_WRAPPINGS)}"
        )
    state_dict = {_PREFIXES.sub("", key): value for key, value in checkpoint.items()}
    if len(state_dict) < len(checkpoint):
        raise ConversionError(
            f"--checkpoint {path}: has some weights twice, with and without `module.` before their names; give a file "
            "with one model"
        )
    return state_dict


def _unwrap(checkpoint: object) -> object:
    for _ in _WRAPPINGS:
        inner = checkpoint if isinstance(checkpoint, dict) else {}
        checkpoint = next((inner[name] for name in _WRAPPINGS if isinstance(inner.get(name), dict)), checkpoint)
    return checkpoint


def check_weights(state_dict: dict[str, torch.Tensor]) -> None:
    """Sees to it that the weights are finite floating-point numbers.

    Raises:
        ConversionError: naming those that are not.
    """
    if odd := [
        f"{name} ({str(value.dtype if value.layout == torch.strided else value.layout).removeprefix('torch.')})"
        for name, value in state_dict.items()
        if value.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
        or value.layout != torch.strided
    ]:
        raise ConversionError(
            f"--checkpoint: weights that are no plain floating-point numbers: {listed(odd)}; give the checkpoint from "
            "before it was quantised or pruned"
        )
    if diverged := [name for name, value in state_dict.items() if not value.isfinite().all()]:
        raise ConversionError(
            f"--checkpoint: NaN or infinite values in {listed(diverged)}; give a checkpoint from before the training "
            "diverged"
        )


def _image_and_patch_size(
    num_patches: int,
    patch_dim: int,
    image_size: tuple[int, int] | None,
    patch_size: tuple[int, int] | None,
) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Image size, patch size and number of channels that give these shapes; square ones where there is a choice."""
    for name, size in (("image_size", image_size), ("patch_size", patch_size)):
        if size is not None and min(size) < 1:
            raise ConversionError(f"--{name} {size[0]} {size[1]}: must be positive; give height and width in pixels")
    if image_size is None:
        rows = math.isqrt(num_patches)
        # Three channels or one, before any other number that fits.
        channels = (3, 1, *range(2, patch_dim + 1))
        sides = ((math.isqrt(patch_dim // c), c) for c in channels)
        side = next((side for side, c in sides if side * side * c == patch_dim), 0)
        if rows * rows != num_patches or not (patch_size or side):
            raise ConversionError(
                f"--image_size: missing; give it, as {num_patches} patches of {patch_dim} values are no square image "
                "in square patches"
            )
        patch_size = patch_size or (side, side)
        image_size = (rows * patch_size[0], rows * patch_size[1])
    height, width = image_size
    candidates = [
        (height // rows, width // (num_patches // rows))
        for rows in range(1, num_patches + 1)
        if num_patches % rows == 0 and height % rows == 0 and width % (num_patches // rows) == 0
    ]
    if patch_size is not None:
        candidates = [patch for patch in candidates if patch == patch_size]
    candidates = [patch for patch in candidates if patch_dim % math.prod(patch) == 0]
    square = [patch for patch in candidates if patch[0] == patch[1]]
    if len(square or candidates) != 1:
        problem = "can be cut in several ways" if candidates else "cannot be cut"
        way_out = "give --patch_size HEIGHT WIDTH" if candidates else "give the size that the model was trained on"
        given = "" if patch_size is None else f" with --patch_size {patch_size[0]} {patch_size[1]}"
        raise ConversionError(
            f"--image_size {height} {width}{given}: {problem} into {num_patches} patches of {patch_dim} values; "
            f"{way_out}"
        )
    (patch,) = square or candidates
    return image_size, patch, patch_dim // math.prod(patch)


def _has_dimensions(tensor: torch.Tensor | None, ndim: int) -> bool:
    return tensor is not None and tensor.ndim == ndim and tensor.numel() > 0


def config_from_official(
    state_dict: dict[str, torch.Tensor],
    num_attention_heads: int,
    image_size: tuple[int, int] | None = None,
    patch_size: tuple[int, int] | None = None,
    **overrides,
) -> CrateConfig:
    """The configuration of a checkpoint in the authors' layout, its sizes read off the shapes.

    Args:
        state_dict: what [`load_official_checkpoint`] returns.
        num_attention_heads: K. It cannot be read off the shapes.
        image_size: height and width in pixels. By default square images.
        patch_size: height and width in pixels. By default square patches, where these fit.
        overrides: other fields of [`CrateConfig`] that shapes do not show: `pooling`, `ista_step_size`, …

    Raises:
        ConversionError: if the checkpoint is not CRATE's, or an argument does not fit it.
    """
    dimensions = {
        "cls_token": 3,
        "pos_embedding": 3,
        "to_patch_embedding.2.weight": 2,
        "transformer.layers.0.0.fn.qkv.weight": 2,
        "mlp_head.1.weight": 2,
    }
    if missing := [key for key, ndim in dimensions.items() if not _has_dimensions(state_dict.get(key), ndim)]:
        raise ConversionError(
            f"--checkpoint: no CRATE classifier in the authors' layout: keys {listed(missing)} are missing or "
            f"misshapen among {listed(state_dict) or 'none'}; give an official CRATE checkpoint"
        )
    hidden_size, patch_dim = state_dict["to_patch_embedding.2.weight"].shape
    subspaces_dim = state_dict["transformer.layers.0.0.fn.qkv.weight"].shape[0]
    if num_attention_heads < 1 or subspaces_dim % num_attention_heads:
        raise ConversionError(
            f"--num_attention_heads {num_attention_heads}: does not divide the {subspaces_dim} rows of "
            "transformer.layers.0.0.fn.qkv.weight; give the number of heads that the model was trained with"
        )
    has_projection = "transformer.layers.0.0.fn.to_out.0.weight" in state_dict
    if subspaces_dim == hidden_size and has_projection != (num_attention_heads > 1):
        finding = "is there, so there are several heads" if has_projection else "is not there, so there is 1 head"
        raise ConversionError(
            f"--num_attention_heads {num_attention_heads}: transformer.layers.0.0.fn.to_out.0.weight {finding}; give "
            "the number of heads that the model was trained with"
        )
    num_patches = state_dict["pos_embedding"].shape[1] - 1
    layers = {int(match[1]) for key in state_dict if (match := re.match(r"transformer\.layers\.(\d{1,9})\.", key))}
    if num_patches < 1 or layers != set(range(len(layers))):
        lacking = "pos_embedding has no row of a patch" if num_patches < 1 else "layers are missing before the last"
        raise ConversionError(f"--checkpoint: {lacking}; give an unmodified CRATE checkpoint")
    image_size, patch_size, num_channels = _image_and_patch_size(num_patches, patch_dim, image_size, patch_size)
    sizes = {
        "hidden_size": hidden_size,
        "num_hidden_layers": len(layers),
        "num_attention_heads": num_attention_heads,
        "head_dim": subspaces_dim // num_attention_heads,
        "image_size": image_size[0] if image_size[0] == image_size[1] else image_size,
        "patch_size": patch_size[0] if patch_size[0] == patch_size[1] else patch_size,
        "num_channels": num_channels,
        "num_labels": state_dict["mlp_head.1.weight"].shape[0],
    }
    try:
        return CrateConfig(**sizes, **overrides)
    except StrictDataclassError as error:
        arguments = " ".join(f"--{name} {value}" for name, value in overrides.items())
        raise ConversionError(f"{arguments}: {error.__cause__ or error}; give other values") from error


def from_official(state_dict: dict[str, torch.Tensor], config: CrateConfig) -> CrateForImageClassification:
    """The model of a checkpoint in the authors' layout, in the checkpoint's precision and in evaluation mode.

    Raises:
        ConversionError: if keys are missing or left over, have other shapes than `config` says, or hold anything but
            finite floating-point numbers; it lists them.
    """
    names = _official_names(config)
    missing, left_over = set(names.values()) - state_dict.keys(), state_dict.keys() - set(names.values())
    if missing or left_over:
        raise ConversionError(
            f"--checkpoint: keys do not match CRATE's; missing: {listed(missing) or 'none'}; left over: "
            f"{listed(left_over) or 'none'}; give an unmodified CRATE checkpoint"
        )
    with torch.device("meta"):
        model = CrateForImageClassification(config)
    expected = model.state_dict()
    if misshapen := [
        f"{official} {list(state_dict[official].shape)} instead of {list(expected[ours].shape)}"
        for ours, official in names.items()
        if state_dict[official].shape != expected[ours].shape
    ]:
        raise ConversionError(
            f"--checkpoint: shapes contradict each other: {listed(misshapen)}; give an unmodified CRATE checkpoint"
        )
    check_weights(state_dict)
    # `contiguous`: safetensors stores no views.
    model.load_state_dict(
        {ours: state_dict[official].contiguous() for ours, official in names.items()}, strict=True, assign=True
    )
    return model.eval()


def to_official(model: CrateForImageClassification) -> dict[str, torch.Tensor]:
    """The state dict of `model` in the authors' layout, without the `module.` prefix.

    Raises:
        ConversionError: if the model has something that the authors' code has fixed otherwise, or no classifier.
    """
    for field, value in _FIXED_BY_AUTHORS.items():
        if getattr(model.config, field) != value:
            raise ConversionError(
                f"--checkpoint: `{field}` is {getattr(model.config, field)}, in the authors' code always {value}; "
                "a model like this has no form in their layout"
            )
    if model.config.num_labels < 1:
        raise ConversionError("--checkpoint: has no classifier (`num_labels` is 0); the authors' layout needs one")
    state_dict = model.state_dict()
    return {official: state_dict[ours].contiguous() for ours, official in _official_names(model.config).items()}


def image_processor_for(config: CrateConfig) -> ViTImageProcessorPil:
    """The authors' evaluation transform: resize, centre crop to 224/256 of the shorter side, ImageNet's statistics.

    Images that are not square are resized without a crop, and other than three channels scaled to [−1, 1].
    """
    height, width = (count * side for count, side in zip(config.image_grid, config.patch_shape, strict=True))
    rgb = config.num_channels == len(IMAGENET_DEFAULT_MEAN)
    statistics = {
        "image_mean": IMAGENET_DEFAULT_MEAN if rgb else [0.5] * config.num_channels,
        "image_std": IMAGENET_DEFAULT_STD if rgb else [0.5] * config.num_channels,
    }
    if height != width:
        return ViTImageProcessorPil(size={"height": height, "width": width}, **statistics)
    return ViTImageProcessorPil(
        size={"shortest_edge": round(height * 256 / 224)},
        do_center_crop=True,
        crop_size={"height": height, "width": width},
        **statistics,
    )
