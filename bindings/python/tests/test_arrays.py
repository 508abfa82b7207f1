"""Arrays of other libraries are used where they lie: never copied, refused when they do not fit."""
from __future__ import annotations

import array

import numpy as np
import pytest

import latentkv
from conftest import floats
from latentkv import tensor as tensors

SHAPE = dict(format="bf16", latent_dim=64, rope_dim=16, num_blocks=4, owner="engine")


def round_trip(ctx, latent, rope, slots, out):
    pool = latentkv.Pool(ctx, **SHAPE)
    pool.append(latent, rope, slots)
    pool.gather(slots, out)
    return out


def test_views_of_numpy(rng):
    x = floats(rng, 4, 6, 8)
    for part in (x, x[1:3], x[:, ::2], x.transpose(1, 0, 2), x[:, :, :4], x[:1], x[..., :1]):
        found = latentkv.view(part)
        assert found.address == part.ctypes.data and found.shape == part.shape
        wanted = [s // 4 for s in part.strides]
        assert all(a == b for a, b, n in zip(found.strides, wanted, part.shape) if n > 1)
    assert latentkv.view(np.zeros((0, 3), "f4")).shape == (0, 3)


def test_strided_rows(ctx, rng):
    """Outer dimensions may lie apart: a slice of a wider array, as engines have them."""
    wide, slots = floats(rng, 8, 96), np.arange(8, dtype=np.int64)
    out = np.zeros((8, 128), "f4")
    round_trip(ctx, wide[:, :64], wide[:, 64:80], slots, out[:, 32:96])
    packed = round_trip(ctx, wide[:, :64].copy(), wide[:, 64:80].copy(), slots,
                        np.zeros((8, 64), "f4"))
    assert np.array_equal(out[:, 32:96], packed) and not out[:, :32].any() and not out[:, 96:].any()


def test_what_is_refused(ctx, rng):
    latent, rope, slots = floats(rng, 2, 64), floats(rng, 2, 16), np.arange(2, dtype=np.int64)
    pool = latentkv.Pool(ctx, **SHAPE)
    frozen = np.zeros((2, 64), "f4")
    frozen.flags.writeable = False
    cases = [(lambda: pool.gather(slots, frozen), "read-only"),
             (lambda: pool.append(latent.astype("f8"), rope, slots), "float64"),
             (lambda: pool.append(latent.astype(">f4"), rope, slots), ">f4|float32"),
             (lambda: pool.append(latent, rope, slots.astype("i4")), "int64"),
             (lambda: pool.append(latent, rope, np.zeros(4, "i8")[::2]), "dense"),
             (lambda: pool.append(latent, rope, slots[:1]), "need 2"),
             (lambda: pool.append(latent[:, ::2], rope, slots), "stride|shape"),
             (lambda: pool.append([1.0], rope, slots), "list has none of"),
             (lambda: pool.append(latent, rope[:, :8], slots), "8"),
             (lambda: pool.append(OnGpu(latent), rope, slots), "cuda:3.*the host")]
    for call, word in cases:
        with pytest.raises(latentkv.InvalidError, match=word):
            call()


class OnGpu:
    """An array that says that it is on a GPU; nobody may read its address."""

    def __init__(self, host):
        self.device = 3
        self.__cuda_array_interface__ = dict(host.__array_interface__, version=3)


def test_cuda_array_interface():
    found = latentkv.view(OnGpu(np.zeros((2, 3), "f2")))
    assert (found.device, found.dtype, found.shape, found.strides) == (3, "float16", (2, 3), (3, 1))


class Exported:
    """An array of a library that has DLPack alone."""

    def __init__(self, given):
        self.given = given

    def __dlpack__(self, **words):
        return self.given.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.given.__dlpack_device__()


class ExportedBefore1(Exported):
    """The same, before DLPack 1.0."""

    def __dlpack__(self, stream=None):
        return self.given.__dlpack__(stream=stream)


@pytest.mark.parametrize("kind", [Exported, ExportedBefore1])
def test_dlpack(ctx, rng, kind):
    latent, rope, slots = floats(rng, 3, 64), floats(rng, 3, 16), np.arange(3, dtype=np.int64)
    found = latentkv.view(kind(latent[1:]))
    assert (found.address, found.shape) == (latent[1:].ctypes.data, (2, 64))
    out, wanted = np.zeros((3, 64), "f4"), np.zeros((3, 64), "f4")
    round_trip(ctx, kind(latent), kind(rope), kind(slots), kind(out))
    assert np.array_equal(out, round_trip(ctx, latent, rope, slots, wanted)) and out.any()


def test_dlpack_gives_its_memory_back():
    import gc
    import weakref
    held = np.zeros(10, "f4")
    gone = weakref.ref(held)
    view = latentkv.view(Exported(held))
    del held
    gc.collect()
    assert gone() is not None and view.shape == (10,)
    del view
    gc.collect()
    assert gone() is None


def test_read_only_dlpack(ctx):
    x = np.zeros((1, 64), "f4")
    x.flags.writeable = False
    try:
        found = latentkv.view(Exported(x))
    except BufferError:
        pytest.skip("this NumPy exports no read-only array")
    assert found.readonly


def test_bfloat16_by_any_other_name(ctx, rng):
    """uint16 memory as bfloat16; ml_dtypes where it is installed."""
    latent, slots, rope = floats(rng, 4, 64), np.arange(4, dtype=np.int64), floats(rng, 4, 16)
    codes = (latent.view(np.uint32) >> 16).astype(np.uint16)
    out = np.zeros((4, 64), np.uint16)
    round_trip(ctx, latentkv.as_dtype(codes, "bfloat16"), rope, slots,
               latentkv.as_dtype(out, "bfloat16"))
    assert np.array_equal(out, codes)  # a bf16 cache keeps bf16 values
    with pytest.raises(latentkv.InvalidError, match="same size"):
        latentkv.as_dtype(latent, "bfloat16")


def test_ml_dtypes(ctx, rng):
    kinds = pytest.importorskip("ml_dtypes")
    latent = floats(rng, 4, 64).astype(kinds.bfloat16)
    out = np.zeros((4, 64), kinds.bfloat16)
    round_trip(ctx, latent, floats(rng, 4, 16), np.arange(4, dtype=np.int64), out)
    assert np.array_equal(out, latent)


def test_torch(ctx, rng):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        latent, rope = torch.randn(4, 64).to(dtype), torch.randn(4, 16).to(dtype)
        out = torch.zeros(4, 64, dtype=dtype)
        round_trip(ctx, latent, rope, torch.arange(4), out)
        assert torch.equal(out, latent.to(torch.bfloat16).to(dtype))
    assert latentkv.view(latent).address == latent.data_ptr()


def test_jax(ctx, rng):
    jax = pytest.importorskip("jax")
    cpu, jnp = jax.devices("cpu")[0], pytest.importorskip("jax.numpy")
    latent, rope = jax.device_put(floats(rng, 4, 64), cpu), jax.device_put(floats(rng, 4, 16), cpu)
    out, slots = np.zeros((4, 64), "f4"), np.arange(4, dtype=np.int64)
    round_trip(ctx, latent, rope, slots, out)
    assert np.array_equal(out, round_trip(ctx, np.asarray(latent), np.asarray(rope), slots,
                                          np.zeros((4, 64), "f4")))
    assert latentkv.view(latent).address == latent.unsafe_buffer_pointer()
    half = latent.astype(jnp.bfloat16)
    assert latentkv.view(half).dtype == "bfloat16"


def test_host_arrays():
    room = latentkv.host((3, 4), "int32")
    assert room.address % 256 == 0 and not np.asarray(room).any()
    np.asarray(room)[1, 2] = 7
    assert room.tolist()[6] == 7
    kept = np.asarray(latentkv.host(5, "float32"))
    assert kept.tolist() == [0.0] * 5
    with pytest.raises(AttributeError):
        latentkv.host(2, "bfloat16").__array_interface__
    assert latentkv.view(latentkv.host(2, "bfloat16")).dtype == "bfloat16"


def test_tokens_of_any_kind(blocks):
    for tokens in ([1, 2, 3], range(3), (1, 2), array.array("i", [4, 5]), np.arange(3),
                   np.arange(3, dtype=np.int32), iter([7, 8, 9])):
        assert len(blocks.admit(tokens)) in (2, 3)
    with pytest.raises(latentkv.InvalidError, match="tokens"):
        blocks.admit(["a"])


def test_streams():
    class Stream:
        cuda_stream = 77
    from latentkv._arguments import stream
    assert (stream(None), stream(5), stream(Stream())) == (None, 5, 77)
    with pytest.raises(latentkv.InvalidError, match="str is not a stream"):
        stream("s")


def test_every_dtype_has_a_size():
    assert set(tensors.DTYPES) < set(tensors.BYTES)
