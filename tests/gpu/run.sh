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
names=()
report() { # name status seconds: prints the tail of a finished step, keeps the whole in the log
  (($2)) && failed=1
  echo "== $1: exit $2, $3 s" | tee -a "$log"
  cat "$out/$1.step" >>"$log"
  tail -n "$(($2 ? 12 : ${LKV_LINES:-2}))" "$out/$1.step"
  rm -f "$out/$1".{step,end}
}
step() { # name command...: alone on the device, as a bench must be
  local name=$1 begin=$SECONDS status=0
  shift
  "$@" >"$out/$name.step" 2>&1 || status=$?
  report "$name" "$status" $((SECONDS - begin))
}
beside() { # name command...: in the background, for what is checked and not timed
  local name=$1 begin=$SECONDS
  shift
  names+=("$name")
  {
    local status=0
    "$@" >"$out/$name.step" 2>&1 || status=$?
    echo "$status $((SECONDS - begin))" >"$out/$name.end"
  } &
}
together() { # waits for everything begun by beside
  local name
  wait
  for name in "${names[@]}"; do
    # shellcheck disable=SC2046
    report "$name" $(cat "$out/$name.end")
  done
  names=()
}
beside records timeout 150 "$bin/test_gpu_records"
beside project timeout 150 "$bin/test_gpu_project"
beside swap timeout 150 "$bin/test_gpu_swap"
beside generic timeout 300 "$bin/test_gpu_decode" --generic
beside decode timeout 300 "$bin/test_gpu_decode"
together
lkv=$build/tools/lkv
[[ -x $lkv ]] || lkv=$build/lkv
if [[ -x $lkv && ${LKV_BENCH:-1} = 1 ]]; then
  LKV_LINES=60
  step bench-append timeout 60 "$lkv" bench append --device cuda:0 --batch 64,8192 \
    --json "$out/append.json"
  step bench-decode timeout 240 "$lkv" bench decode --device cuda:0 --seconds 1 \
    --json "$out/decode.json"
fi
if command -v compute-sanitizer >/dev/null && [[ ${LKV_SANITIZER:-1} = 1 ]]; then
  for tool in memcheck racecheck synccheck initcheck; do
    sanitize=(timeout 150 compute-sanitizer --tool "$tool" --error-exitcode 9)
    beside "$tool-generic" "${sanitize[@]}" "$bin/test_gpu_decode" --small --generic
    beside "$tool-decode" "${sanitize[@]}" "$bin/test_gpu_decode" --small
  done
  beside memcheck-records timeout 150 compute-sanitizer --error-exitcode 9 \
    "$bin/test_gpu_records" --small
  together
fi
exit $failed
