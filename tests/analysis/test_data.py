# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from PIL import Image, ImageOps

from sparsight.analysis.data import folder_images, upright_image


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_upright_as_pipelines_turn_them(tmp_path, orientation):
    pixels = np.random.default_rng(0).integers(0, 255, (6, 9, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "photo.png", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(tmp_path / "photo.png")).convert("RGB")
    assert expected.size == ((9, 6) if orientation < 5 else (6, 9))
    (found,) = folder_images(tmp_path)
    assert np.array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.parametrize("byte_order", ["<u2", ">u2"])
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, suffix, byte_order):
    levels = np.arange(256).reshape(16, 16)
    Image.fromarray((levels * 257).astype(np.uint16).astype(byte_order)).save(tmp_path / f"a.{suffix}")
    (image,) = folder_images(tmp_path)
    assert np.array_equal(np.asarray(image), np.repeat(levels[..., None], 3, axis=2))
    with Image.open(tmp_path / f"a.{suffix}") as opened:
        assert np.array_equal(np.asarray(upright_image(opened, "L")), levels)


@pytest.mark.parametrize(("mode", "kind"), [("I", np.int32), ("F", np.float32)])
def test_thirty_two_bits_are_refused_by_mode_and_path(tmp_path, mode, kind):
    Image.fromarray(np.full((4, 4), 70_000, dtype=kind)).save(tmp_path / "deep.tif")
    with pytest.raises(ValueError, match=rf"deep\.tif: cannot be read as an image \(pixels of mode {mode}, 32 bits"):
        folder_images(tmp_path)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_other_modes_are_converted_as_pillow_does(mode):
    pixels = np.random.default_rng(0).integers(0, 255, (6, 9, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    assert np.array_equal(np.asarray(upright_image(image)), np.asarray(image.convert("RGB")))


def test_damaged_exif_data_leave_the_pixels(tmp_path):
    Image.new("RGB", (6, 4), (10, 20, 30)).save(tmp_path / "photo.png", exif=b"Exif\0\0nothing that is a header")
    assert [image.size for image in folder_images(tmp_path)] == [(6, 4)]


def test_hidden_files_are_no_images(tmp_path):
    Image.new("RGB", (6, 4)).save(tmp_path / "photo.png")
    (tmp_path / "._photo.png").write_bytes(b"what a Mac leaves beside it")
    assert len(folder_images(tmp_path)) == 1
