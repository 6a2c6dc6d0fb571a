import base64
import hashlib
import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_text import documents_of, sources, train_bpe, write_jsonl

import packcore
from packcore.errors import ArgumentError, ArgumentTypeError, MissingExtraError, NoDataError
from packcore.pipeline.tokenizers import BytesTokenizer, load_tokenizer


def encoded(tokenizer, texts):
    flat, lengths = tokenizer.encode(texts)
    assert (flat.ndim, lengths.dtype, int(lengths.sum())) == (1, np.int64, len(flat))
    return [one.tolist() for one in np.split(flat, np.cumsum(lengths)[:-1])] if texts else []


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_bytes_are_the_bytes_and_come_back(texts):
    tokenizer = load_tokenizer("bytes")
    found = encoded(tokenizer, texts)
    assert found == [list(text.encode()) for text in texts]
    assert [tokenizer.decode(np.array(ids, np.int64)) for ids in found] == texts


def test_bytes_knows_its_end_mark_and_single_bytes():
    tokenizer = BytesTokenizer()
    assert (tokenizer.vocab_size, tokenizer.eod_token) == (257, 256)
    assert tokenizer.decode(np.array([65, 256])) == "A\ufffd"
    assert (tokenizer.token_id("\n"), tokenizer.token_id("ab"), tokenizer.token_id("")) == (
        10, None, None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("bpe")
    return train_bpe(folder / "tokenizer.json", 600), folder


def test_a_tokenizer_json_gives_what_its_package_gives(bpe):
    trained, folder = bpe
    loaded = load_tokenizer(folder / "tokenizer.json")
    texts = sources()[-8:]
    assert encoded(loaded, texts) == [trained.encode(text).ids for text in texts]
    assert [loaded.decode(np.array(trained.encode(text).ids)) for text in texts] == texts
    assert loaded.vocab_size == trained.get_vocab_size()
    assert (loaded.eod_token, loaded.token_id("<|bos|>"), loaded.token_id("<nothing>")) == (
        0,
        1,
        None,
    )
    content = (folder / "tokenizer.json").read_bytes()
    assert loaded.hash == hashlib.sha256(content).hexdigest()
    assert load_tokenizer(folder).hash == loaded.hash


def test_truncation_and_padding_of_a_tokenizer_json_are_turned_off(tmp_path, bpe):
    trained, folder = bpe
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    content["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    texts = ["a", "much more than three tokens"]
    expected = [trained.encode(text).ids for text in texts]
    assert encoded(load_tokenizer(tmp_path), texts) == expected


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("tokenizer_config.json", {"eos_token": "<|bos|>"}),
        ("tokenizer_config.json", {"eos_token": {"content": "<|bos|>"}}),
        ("special_tokens_map.json", {"eos_token": "<|bos|>"}),
    ],
)
def test_the_end_mark_is_what_the_config_beside_it_says(tmp_path, bpe, name, config):
    content = (bpe[1] / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / name).write_text(json.dumps(config))
    assert load_tokenizer(tmp_path).eod_token == 1


def test_an_end_mark_that_nothing_names_has_to_be_given(tmp_path, bpe):
    content = (bpe[1] / "tokenizer.json").read_text()
    path = tmp_path / "tokenizer.json"
    path.write_text(content.replace("<|endoftext|>", "<|other|>"))
    inputs = write_jsonl(tmp_path / "a.jsonl", ["hi"])
    with pytest.raises(ArgumentError) as caught:
        packcore.build(inputs, tmp_path / "out", tokenizer=path, workers=0)
    assert str(caught.value).startswith(f"The tokenizer {path} does not say which id ends a")
    packcore.build(inputs, tmp_path / "out", tokenizer=path, workers=0, eod="<|bos|>")
    assert documents_of(tmp_path / "out")[0][-1] == 1


def test_a_sentencepiece_model_gives_what_its_package_gives(tmp_path):
    package = pytest.importorskip("sentencepiece")
    (tmp_path / "text.txt").write_text("\n".join(sources()[:12]), "utf-8")
    package.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "m"), vocab_size=400,
        model_type="bpe", byte_fallback=True, minloglevel=9, num_threads=1,
    )  # fmt: skip
    path = tmp_path / "m.model"
    model = package.SentencePieceProcessor(model_file=str(path))
    texts = [text[:3000] for text in sources()[-6:]]
    packcore.build(
        write_jsonl(tmp_path / "a.jsonl", texts), tmp_path / "out", tokenizer=path, workers=1
    )
    expected = [[*model.encode(text), model.eos_id()] for text in texts]
    assert documents_of(tmp_path / "out") == expected
    loaded = load_tokenizer(path)
    assert loaded.decode(np.array(model.encode("some text"))) == "some text"
    assert (loaded.token_id("</s>"), loaded.token_id("nothing like it")) == (2, None)


PLUGIN = """
from tiktoken.load import load_tiktoken_bpe

def toy():
    return {
        "name": "toy",
        "pat_str": r"\\w+|\\s+|[^\\w\\s]+",
        "mergeable_ranks": load_tiktoken_bpe("https://nowhere.invalid/toy.tiktoken", HASH),
        "special_tokens": {"<|endoftext|>": 300},
    }

ENCODING_CONSTRUCTORS = {"toy": toy}
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """An encoding that tiktoken knows by a plugin, whose address leads nowhere."""
    tiktoken = pytest.importorskip("tiktoken")
    ranks = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b"in", b"ing"]
    lines = [base64.b64encode(one) + b" %d\n" % rank for rank, one in enumerate(ranks)]
    path = tmp_path / "toy.tiktoken"
    path.write_bytes(b"".join(lines))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    plugin = tmp_path / "plugin" / "tiktoken_ext"
    plugin.mkdir(parents=True)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (plugin / "packcore_toy.py").write_text(PLUGIN.replace("HASH", repr(digest)))
    monkeypatch.syspath_prepend(str(plugin.parent))
    monkeypatch.setattr(tiktoken.registry, "ENCODING_CONSTRUCTORS", None)
    tiktoken.registry._available_plugin_modules.cache_clear()
    yield path
    tiktoken.registry._available_plugin_modules.cache_clear()
    tiktoken.registry.ENCODINGS.pop("toy", None)
    sys.modules.pop("tiktoken_ext.packcore_toy", None)


def test_a_tiktoken_file_and_a_tiktoken_name_give_what_the_package_gives(tmp_path, toy):
    tiktoken = pytest.importorskip("tiktoken")
    by_file = load_tokenizer(toy)
    cached = tmp_path / "cache" / hashlib.sha1(b"https://nowhere.invalid/toy.tiktoken").hexdigest()
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(toy.read_bytes())
    by_name = load_tokenizer("tiktoken:toy")
    encoding = tiktoken.get_encoding("toy")
    texts = ["the thing <|endoftext|> \u00e9", "", *sources()[:2]]
    expected = [encoding.encode_ordinary(text) for text in texts]
    assert encoded(by_file, texts) == encoded(by_name, texts) == expected
    assert by_file.hash == by_name.hash
    assert (by_file.eod_token, by_file.vocab_size, by_file.token_id("ing")) == (300, 301, 259)
    assert by_file.token_id("nothing") is None
    assert by_file.decode(np.array([*expected[0], 300])) == texts[0] + "<|endoftext|>"


def test_a_tiktoken_file_of_another_name_or_content_is_refused(toy):
    other = toy.with_name("other.tiktoken")
    toy.rename(other)
    with pytest.raises(ArgumentError, match="must be named as an encoding that tiktoken knows: "):
        load_tokenizer(other)
    other.rename(toy)
    toy.write_bytes(toy.read_bytes().replace(b" 258\n", b" 258 \n"))
    with pytest.raises(ArgumentError, match=r"cannot be loaded: .*[Hh]ash"):
        load_tokenizer(toy)


def letters(texts):
    return [[ord(letter) - 97 for letter in text] for text in texts]


letters.vocab_size = 26
letters.eod_token = 25
letters.decode = lambda ids: "".join(chr(97 + one) for one in ids)


def test_a_function_is_a_tokenizer(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = load_tokenizer("test_tokenizers:letters")
    assert encoded(loaded, ["abc", "", "b"]) == [[0, 1, 2], [], [1]]
    assert (loaded.vocab_size, loaded.eod_token) == (26, 25)
    assert loaded.decode(np.array([0, 1])) == "ab"
    assert loaded.token_id("a") is None
    with open(__file__, "rb") as file:
        assert loaded.hash == hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (3, ArgumentTypeError, "tokenizer must be a name or a path; got 3."),
        ("", ArgumentError, "tokenizer must be 'bytes', a tokenizer.json, a .model, 'tiktoken:N"),
        ("gone/tokenizer.json", NoDataError, "There is no tokenizer file gone/tokenizer.json."),
        ("gone.model", NoDataError, "There is no tokenizer file gone.model."),
        ("gone:encode", ArgumentError, "tokenizer 'gone:encode' must name a function that can be"),
        ("json:gone", ArgumentError, "tokenizer 'json:gone' must name a function that can be"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name, error, message):
    with pytest.raises(error) as caught:
        load_tokenizer(name)
    assert str(caught.value).startswith(message)


def test_a_file_that_is_no_tokenizer_is_refused_by_its_name(tmp_path):
    for package, name in {"tokenizers": "tokenizer.json", "sentencepiece": "a.model"}.items():
        pytest.importorskip(package)
        path = tmp_path / name
        path.write_text("nothing")
        with pytest.raises(ArgumentError) as caught:
            load_tokenizer(path)
        assert str(caught.value).startswith(f"The tokenizer {path} cannot be loaded: ")


@pytest.mark.parametrize(
    ("package", "name", "extra"),
    [
        ("tokenizers", "tokenizer.json", "tokenizers"),
        ("sentencepiece", "a.model", "sentencepiece"),
        ("tiktoken", "tiktoken:cl100k_base", "tiktoken"),
    ],
)
def test_a_missing_package_is_named_with_its_pip_line(tmp_path, monkeypatch, package, name, extra):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as caught:
        load_tokenizer(name)
    assert str(caught.value) == (
        f"The tokenizer {name} needs the package {package}. Install it with: "
        f'pip install "packcore[{extra}]"'
    )
