"""Damaged, foreign and missing files: an error that names the file, or the right rows; never wrong ones."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.errors import CorruptStoreError, SemistreamError, StoreNotFoundError
from semistream.joins import JOINS
from semistream.stores import MasterStore
from tests.tables import table_of

MUTATIONS = 240


def content(store: MasterStore) -> Counter[str]:
    return Counter(map(repr, table_of(store.scan(), store.schema).to_pylist()))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    """Text, NULLs, a row larger than a page, colliding keys, deltas of both kinds, several pages each."""
    keys = [f"key {n}" for n in range(900)]
    texts = [None if n % 9 == 0 else "long " * 2_000 if n == 450 else f"text {n} " * (n % 9) for n in range(900)]
    table = pa.table({"k": keys, "v": range(900), "text": texts})
    path = tmp_path_factory.mktemp("sound") / "store"
    store = MasterStore.build(table, path, key="k", hash_bits=12)
    store = store.upsert(pa.table({"k": keys[100:300], "v": range(200), "text": ["new " * 9] * 200}))
    return store.delete(keys[500:600])


def flip(data: bytearray, chooser: random.Random) -> None:
    for _ in range(chooser.choice([1, 1, 1, 8])):
        data[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)


def cut(data: bytearray, chooser: random.Random) -> None:
    del data[chooser.choice([0, 1, len(data) - 1, len(data) // 2, chooser.randrange(len(data))]) :]


def append(data: bytearray, chooser: random.Random) -> None:
    data.extend(chooser.randbytes(chooser.choice([1, 32, 4096])))


def overwrite(data: bytearray, chooser: random.Random) -> None:
    start = chooser.randrange(len(data))
    size = min(chooser.choice([8, 512, 4096]), len(data) - start)
    data[start : start + size] = bytes(size) if chooser.random() < 0.5 else chooser.randbytes(size)


def drop_a_block(data: bytearray, chooser: random.Random) -> None:
    start = chooser.randrange(len(data)) // 4096 * 4096
    del data[start : start + 4096]


def swap_blocks(data: bytearray, chooser: random.Random) -> None:
    first, second = (chooser.randrange(max(1, len(data) // 4096)) * 4096 for _ in range(2))
    one, other = data[first : first + 4096], data[second : second + 4096]
    if len(one) == len(other):
        data[first : first + 4096], data[second : second + 4096] = other, one


KINDS: list[Callable[[bytearray, random.Random], None]] = [
    flip,
    flip,
    flip,
    cut,
    append,
    overwrite,
    drop_a_block,
    swap_blocks,
]


@pytest.mark.parametrize("part", range(4))
def test_random_damage(sound: MasterStore, tmp_path: Path, part: int) -> None:
    expected = content(sound)
    chooser = random.Random(part)
    found = 0
    for number in range(MUTATIONS // 4):
        copy = tmp_path / str(number)
        shutil.copytree(sound.path, copy)
        file = chooser.choice(sorted(copy.iterdir()))
        kind = chooser.choice(KINDS)
        data = bytearray(file.read_bytes())
        kind(data, chooser)
        file.write_bytes(data)
        try:
            store = MasterStore.open(copy)
            assert content(store) == expected, f"wrong rows after {kind.__name__} of {file.name}, part {part}, {number}"
            keys = [f"key {n}" for n in range(0, 900, 10)]
            assert content_of(store.get(keys)) == content_of(sound.get(keys))
            store.verify()
        except SemistreamError as error:
            found += 1
            assert file.name in str(error), f"{kind.__name__} of {file.name}, part {part}, {number}: {error}"  # noqa: PT017
        shutil.rmtree(copy)
    assert found > MUTATIONS // 4 // 3


def content_of(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


@pytest.mark.parametrize("join", JOINS)
def test_joins_stop_at_a_damaged_page(sound: MasterStore, tmp_path: Path, join: str) -> None:
    from semistream import make_join

    copy = tmp_path / "copy"
    shutil.copytree(sound.path, copy)
    base = copy / sound.manifest.segments[0].file
    data = bytearray(base.read_bytes())
    for place in range(4096 + 200, sound.segments[0].strides * 4096, 4096):
        data[place] ^= 1
    base.write_bytes(data)
    batch = pa.record_batch({"k": [f"key {n}" for n in range(900)]})
    with pytest.raises(CorruptStoreError, match=base.name):
        list(make_join(batch.schema, copy, on="k", algorithm=join, memory="1MB").join([batch]))


def test_missing_files_are_named(sound: MasterStore, tmp_path: Path) -> None:
    for entry in sound.manifest.segments:
        copy = tmp_path / entry.file
        shutil.copytree(sound.path, copy)
        (copy / entry.file).unlink()
        with pytest.raises(StoreNotFoundError, match=entry.file):
            MasterStore.open(copy)
    with pytest.raises(StoreNotFoundError, match="has no version 9; it has versions 1, 2, 3"):
        MasterStore.open(sound.path, 9)
    with pytest.raises(StoreNotFoundError, match=r"no semistream store at .*nowhere.*MasterStore\.build"):
        MasterStore.open(tmp_path / "nowhere")
    (tmp_path / "a file").write_text("")
    with pytest.raises(StoreNotFoundError, match="a file"):
        MasterStore.open(tmp_path / "a file")


def test_strange_files_are_left_alone(sound: MasterStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sound.path, copy)
    strange = [
        "README.txt",
        ".DS_Store",
        "version-abc.json",
        "version-000001.json.bak",
        "segment-0.pages",
        "version-0000007.json",
    ]
    for name in strange:
        (copy / name).write_bytes(b"\0strange")
    (copy / "folder").mkdir()
    store = MasterStore.open(copy)
    assert content(store) == content(sound)
    store = store.upsert(pa.table({"k": ["new"], "v": [1], "text": [""]})).compact()
    store.vacuum(keep=1)
    assert {*strange, "folder"} <= set(os.listdir(copy))


@pytest.mark.parametrize("kind", ["text", "empty", "json", "folder", "link to nowhere"])
def test_a_manifest_that_is_none_is_named(sound: MasterStore, tmp_path: Path, kind: str) -> None:
    copy, name = tmp_path / "copy", "version-000009.json"
    shutil.copytree(sound.path, copy)
    if kind == "folder":
        (copy / name).mkdir()
    elif kind == "link to nowhere":
        (copy / name).symlink_to(copy / "nowhere")
    else:
        (copy / name).write_text({"text": "hello", "empty": "", "json": '{"semistream": 1, "manifest": []}'}[kind])
    with pytest.raises(SemistreamError, match=r"version-000009\.json"):
        MasterStore.open(copy)


def test_a_manifest_under_another_number_is_refused(sound: MasterStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sound.path, copy)
    shutil.copy(copy / "version-000001.json", copy / "version-000004.json")
    with pytest.raises(CorruptStoreError, match=r"version-000004\.json"):
        MasterStore.open(copy)


def test_a_newer_format_is_named(sound: MasterStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sound.path, copy)
    newest = copy / "version-000003.json"
    newest.write_text(newest.read_text().replace('"semistream": 1', '"semistream": 2'))
    with pytest.raises(CorruptStoreError, match=r"version-000003\.json has format 2; .* reads format 1"):
        MasterStore.open(copy)


def test_segments_that_took_each_others_names_are_noticed(tmp_path: Path) -> None:
    """Two deltas of the same keys and lengths differ in their rows alone."""
    store = MasterStore.build(pa.table({"k": [1, 2, 3], "v": [1, 2, 3]}), tmp_path / "store", key="k")
    store = store.upsert(pa.table({"k": [1, 2], "v": [10, 20]})).upsert(pa.table({"k": [1, 2], "v": [100, 200]}))
    first, second = (store.path / entry.file for entry in store.manifest.segments[1:])
    first.rename(tmp_path / "third")
    second.rename(first)
    (tmp_path / "third").rename(second)
    try:
        opened = MasterStore.open(store.path)
        values = opened.get([1, 2])["v"].to_pylist()
    except CorruptStoreError as error:
        assert first.name in str(error) or second.name in str(error)  # noqa: PT017
        return
    assert values == [100, 200]


def test_a_segment_of_another_store_is_noticed(tmp_path: Path) -> None:
    tables = [pa.table({"k": [1, 2, 3], "v": [n, n, n]}) for n in (5, 6)]
    one, other = (MasterStore.build(table, tmp_path / str(n), key="k") for n, table in enumerate(tables))
    mine, foreign = (store.path / store.manifest.segments[0].file for store in (one, other))
    shutil.copy(foreign, mine)
    try:
        values = MasterStore.open(one.path).get([1, 2, 3])["v"].to_pylist()
    except CorruptStoreError as error:
        assert mine.name in str(error)  # noqa: PT017
        return
    assert values == [5, 5, 5]


def test_damage_while_the_store_is_open(sound: MasterStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sound.path, copy)
    for direct in (False, True):
        store = MasterStore.open(copy, direct=direct)
        base = copy / store.manifest.segments[0].file
        size = base.stat().st_size
        os.truncate(base, size // 2)
        with pytest.raises(CorruptStoreError, match=base.name):
            list(store.scan())
        with pytest.raises(CorruptStoreError, match=base.name):
            store.verify()
        shutil.copy(sound.path / base.name, base)
    assert np.int64(store.rows) == sound.rows
