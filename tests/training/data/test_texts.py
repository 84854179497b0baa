# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
from pydoc_data.topics import topics

import datasets
import pytest

from sparsight.training.data.texts import TextSource, iterate_checked, load_texts


def rows(texts) -> list[str]:
    return [row["text"] for row in texts]


def test_stdlib():
    texts = load_texts(TextSource())
    assert sorted(rows(texts.train) + rows(texts.eval)) == sorted(topics.values())
    assert len(texts.eval) == pytest.approx(len(topics) / 10, abs=1)
    assert texts.eval_split == "a tenth of train"
    assert rows(load_texts(TextSource()).eval) == rows(texts.eval)


def test_limits():
    texts = load_texts(TextSource(max_train_samples=5, max_eval_samples=2))
    whole = load_texts(TextSource())
    assert rows(texts.train) == rows(whole.train)[:5]
    assert rows(texts.eval) == rows(whole.eval)[:2]


@pytest.fixture(params=["txt", "parquet", "folder of txt", "folder of parquet"])
def files(request, tmp_path):
    """Twenty texts in a file, or in two of a folder."""
    texts = [f"Text number {index}." for index in range(20)]
    halves = [texts] if "folder" not in request.param else [texts[:10], texts[10:]]
    for number, part in enumerate(halves):
        if request.param.endswith("txt"):
            (tmp_path / f"{number}.txt").write_text("\n\n".join(part))
        else:
            datasets.Dataset.from_dict({"text": part, "url": part}).to_parquet(tmp_path / f"{number}.parquet")
    return (tmp_path if "folder" in request.param else next(tmp_path.iterdir())), texts


@pytest.mark.parametrize("streaming", [False, True])
def test_files(files, streaming):
    path, expected = files
    texts = load_texts(TextSource(dataset=str(path), streaming=streaming, max_eval_samples=2))
    assert len(rows(texts.eval)) == 2
    found = [text.strip() for text in rows(texts.train) + rows(texts.eval)]
    assert sorted(found) == sorted(expected)
    assert set(next(iter(texts.train))) == {"text"}


def test_stream_holds_out_its_first_texts():
    texts = load_texts(TextSource(streaming=True, max_eval_samples=3, max_train_samples=4))
    names = sorted(topics)
    assert rows(texts.eval) == [topics[name] for name in names[:3]]
    assert rows(texts.train) == [topics[name] for name in names[3:7]]
    assert texts.eval_split == "the first 3 texts of train"


def test_other_column(tmp_path):
    data = datasets.Dataset.from_dict({"content": ["one", "two"] * 5, "url": ["x"] * 10})
    data.to_parquet(tmp_path / "a.parquet")
    texts = load_texts(TextSource(dataset=str(tmp_path / "a.parquet"), text_column="content"))
    assert set(rows(texts.train)) == {"one", "two"}


BAD = {
    "missing file": ({"dataset": "./nowhere.txt"}, "dataset: there is no file ./nowhere.txt"),
    "missing on the Hub": ({"dataset": "nobody/nothing"}, "dataset: 'nobody/nothing' is neither"),
    "split": ({"train_split": "trian"}, "train_split: stdlib has no split 'trian'; it has train"),
    "eval split": ({"eval_split": "dev"}, "eval_split: stdlib has no split 'dev'"),
    "column": ({"text_column": "txet"}, "text_column: there is no column 'txet'; the data set has text"),
    "stream without a held-out number": ({"streaming": True}, "max_eval_samples: say how many"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data(case):
    fields, message = BAD[case]
    with pytest.raises(ValueError, match=r"^\w+: ") as error:
        load_texts(TextSource(**fields))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_folder_without_text(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"^dataset: .* has no \.txt or \.parquet files"):
        load_texts(TextSource(dataset=str(tmp_path)))


@pytest.mark.parametrize(("name", "content"), [("a.txt", b"\xff\xfe\x00bad"), ("a.parquet", b"no parquet")])
def test_unreadable_file(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"^dataset: cannot read"):
        load_texts(TextSource(dataset=str(tmp_path / name)))


def test_one_text_leaves_none_to_evaluate_on(tmp_path):
    (tmp_path / "a.txt").write_text("One text.")
    with pytest.raises(ValueError, match=r"^dataset: .* has one text, and none to evaluate on; give more"):
        load_texts(TextSource(dataset=str(tmp_path / "a.txt")))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("values", "kind"),
    [([["a", "b"]] * 4, "List"), ([1, 2, 3, 4], "int64"), ([0.5, None, 1.0, 2.0], "float64"), ([None] * 4, "null")],
)
def test_a_column_that_holds_no_texts(tmp_path, values, kind, streaming):
    datasets.Dataset.from_dict({"content": values}).to_parquet(tmp_path / "a.parquet")
    source = TextSource(
        dataset=str(tmp_path / "a.parquet"), text_column="content", streaming=streaming, max_eval_samples=1
    )
    with pytest.raises(ValueError, match=rf"^text_column: 'content' holds {kind}, not texts; name a column of str"):
        load_texts(source)


def test_rows_without_a_text(tmp_path):
    datasets.Dataset.from_dict({"text": ["one", None, "two", None]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"^text_column: 'text' is empty \(null\) in 2 rows; remove them"):
        load_texts(TextSource(dataset=str(tmp_path / "a.parquet")))


@pytest.mark.parametrize(("row", "kind"), [(None, "null"), (3, "int"), (["a", "b"], "list")])
def test_rows_of_a_stream_are_checked_as_they_come(row, kind):
    with pytest.raises(ValueError, match=rf"^text_column: a row of 'text' is no text, but {kind}; remove or mend it"):
        list(iterate_checked([{"text": "one"}, {"text": row}], TextSource()))
