"""A small byte-level BPE tokenizer with a chat template, written out by rule.

Every byte is a token, so every text (and every JSON document) can be said; a few
words are merged, so that some tokens are longer than one byte.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = (
    " the", " and", " is", " of", " to", " in", " a", "ing", "er", "on", "true", "false", "null", "name", "value",
    '":', '", "', '{"', '"}', "ship", " sea", " wind", " sail", " port", "hello", " world", "user", "assistant",
    "system", "10", "00", ": ", ", ", ". ",
)  # fmt: skip
"""Texts that become one token each, with every prefix of them."""

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")

VOCAB_SIZE = 384
"""Rows of the embedding; the ids past the last token are never chosen."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def byte_letters() -> list[str]:
    """Return the printable letter that stands for each byte, as GPT-2's byte-level alphabet has it."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, spare = [], 0x100
    for byte in range(256):
        letters.append(chr(byte if byte in plain else spare))
        spare += byte not in plain
    return letters


def pieces() -> tuple[dict[str, int], list[list[str]]]:
    """Return the vocabulary (piece to id) and the merges in order of rank."""
    letters = byte_letters()
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    merges: list[list[str]] = []
    for word in WORDS:
        spelled = [letters[byte] for byte in word.encode()]
        head = spelled[0]
        for letter in spelled[1:]:
            if head + letter not in vocabulary:
                vocabulary[head + letter] = len(vocabulary)
                merges.append([head, letter])
            head += letter
    return vocabulary, merges


def special_ids() -> dict[str, int]:
    """Return the ids of the special tokens; they follow the vocabulary."""
    first = len(pieces()[0])
    return {token: first + index for index, token in enumerate(SPECIAL)}


def speakable_ids() -> frozenset[int]:
    """Return the ids whose text is printable ASCII with at least one letter, digit or sign.

    A model whose answers consist of these gives clean text whatever the sampling:
    no broken UTF-8, and no endless white space where a grammar allows it.
    """
    letters = byte_letters()
    fine = {letters[byte] for byte in range(0x21, 0x7F)}
    space = letters[0x20]
    return frozenset(
        index
        for piece, index in pieces()[0].items()
        if all(letter in fine or letter == space for letter in piece) and piece.strip(space)
    )


def tokenizer_json() -> dict[str, Any]:
    """Return the content of tokenizer.json."""
    vocabulary, merges = pieces()
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": not token.endswith("tool_call>"),
        }
        for token, index in special_ids().items()
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def write_tokenizer(folder: Path, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json for a model with `context` positions."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer.json", tokenizer_json())
    write_json(folder / "tokenizer_config.json", config)


def write_json(path: Path, data: Any) -> None:
    """Write JSON readable by every user."""
    path.write_text(json.dumps(data, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    path.chmod(0o644)
