#!/usr/bin/env bash
# spills.sh DIR: fails if ptxas spilled registers or used local memory in any attention kernel whose
# report lies in DIR, and if there is no report to read.
set -euo pipefail
dir=${1:?usage: spills.sh DIR}
shopt -s nullglob
reports=("$dir"/attention_cuda_*.ptxas)
((${#reports[@]})) || { echo "no ptxas report in $dir" >&2; exit 1; }
bad=$(grep -H "bytes stack frame" "${reports[@]}" |
  grep -v " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" || true)
[[ -z $bad ]] || { echo "$bad" >&2; exit 1; }
echo "${#reports[@]} reports, no spills, no local memory"
