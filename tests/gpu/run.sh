#!/usr/bin/env bash
# run.sh BUILD [OUT]: everything that needs the device, on binaries that are already built: the gpu
# programs, compute-sanitizer over small sets, the benches. Builds nothing. Logs and JSON go to OUT
# (default: the folder gpu-results). Exit 1 if any program or sanitizer failed.
set -uo pipefail
build=${1:?usage: run.sh BUILD [OUT]}
out=${2:-gpu-results}
mkdir -p "$out"
log=$out/log.txt
: >"$log"
export LKV_CUDA_DIR=$build
export LD_LIBRARY_PATH=$build/lib:$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
bin=$build/tests/gpu
failed=0
step() { # name command...
  local name=$1 begin=$SECONDS status=0
  shift
  "$@" >"$out/step.txt" 2>&1 || status=$?
  ((status)) && failed=1
  echo "== $name: exit $status, $((SECONDS - begin)) s" | tee -a "$log"
  cat "$out/step.txt" >>"$log"
  tail -n "$((status ? 12 : ${LKV_LINES:-2}))" "$out/step.txt"
  rm -f "$out/step.txt"
}
step records timeout 150 "$bin/test_gpu_records"
step project timeout 150 "$bin/test_gpu_project"
step generic timeout 300 "$bin/test_gpu_decode" --generic
step decode timeout 300 "$bin/test_gpu_decode"
if command -v compute-sanitizer >/dev/null && [[ ${LKV_SANITIZER:-1} = 1 ]]; then
  for tool in memcheck racecheck synccheck initcheck; do
    sanitize=(timeout 60 compute-sanitizer --tool "$tool" --error-exitcode 9)
    step "$tool-generic" "${sanitize[@]}" "$bin/test_gpu_decode" --small --generic
    step "$tool-decode" "${sanitize[@]}" "$bin/test_gpu_decode" --small
  done
  step memcheck-records timeout 60 compute-sanitizer --error-exitcode 9 "$bin/test_gpu_records" \
    --small
fi
lkv=$build/tools/lkv
[[ -x $lkv ]] || lkv=$build/lkv
if [[ -x $lkv && ${LKV_BENCH:-1} = 1 ]]; then
  LKV_LINES=40
  step bench-append timeout 60 "$lkv" bench append --device cuda:0 --batch 64,8192 \
    --json "$out/append.json"
  step bench-decode timeout 200 "$lkv" bench decode --device cuda:0 --heads 16,64,128 --batch 32 \
    --context 65536 --seconds 1 --json "$out/decode.json"
  step bench-decode-small timeout 60 "$lkv" bench decode --device cuda:0 --heads 16 --batch 1 \
    --context 1024,65536 --seconds 1 --json "$out/decode-small.json"
fi
exit $failed
