# The front door; everything real is in CMake. make help lists the rest.
.PHONY: help build demo check check-vllm clean
help:
	@echo "make build   build/release/lkv and build/release/liblatentkv.so"
	@echo "make demo    build, replay the default workload in int8 and nvfp4, one table"
	@echo "make check   build everything and run all tests that need no GPU"
	@echo "make check-vllm  the plug-ins for vLLM and transformers, in a venv of 6 GB outside the tree"
	@echo "make clean   remove build/ (the private jemalloc in .cache/ stays)"
	@echo "Each installs what is missing with apt first (scripts/setup says what and why)."
build:
	@scripts/setup build
	@scripts/build release latentkv lkv
demo:
	@scripts/demo
check:
	@scripts/check
check-vllm:
	@scripts/check-vllm
clean:
	rm -rf build
