"""In: liblatentkv.so. Out: exit 0 if a bare interpreter can load it, call it, and see a failure as a
status with a sentence. (A library with initial-exec TLS of jemalloc's size cannot be loaded so.)"""
import ctypes
import sys


def main(path):
    lkv = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
    for name in ("lkv_status_name", "lkv_last_error"):
        getattr(lkv, name).restype = ctypes.c_char_p
    version = ctypes.c_uint32(lkv.lkv_version()).value
    assert lkv.lkv_status_name(1) == b"LKV_E_INVALID", lkv.lkv_status_name(1)
    assert lkv.lkv_last_error() == b"", lkv.lkv_last_error()
    context = ctypes.c_void_p()
    status = lkv.lkv_context_create(None, ctypes.byref(context))
    sentence = lkv.lkv_last_error()
    assert status == 1 and not context.value, (status, context.value)
    assert len(sentence) > 10, sentence
    print(f"version {version}; NULL descriptor: {status}, {sentence.decode()!r}")


if __name__ == "__main__":
    main(sys.argv[1])
