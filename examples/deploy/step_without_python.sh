#!/bin/sh
# Steps of the regression in step.vmfb, by IREE's own program: nothing of Python is in the process.
#
#   step_without_python.sh RUN FOLDER STEPS
#
# RUN is the path of iree-run-module, which the package iree-base-runtime has, FOLDER has the files that export_regression.py wrote.
# The state is in files: first_state gives its first values, main takes them after the arguments and returns the next ones after the outputs.
set -eu
run=$1
cd "$2"
call() { "$run" --device=local-sync --module=step.vmfb "$@"; }

call --function=first_state --output=@weights.npy --output=@count.npy >/dev/null
step=0
while [ "$step" -lt "$3" ]; do
    call --function=main --input=@x.npy --input=@y.npy --input=@weights.npy --input=@count.npy \
        --output=@loss.npy --output=@next_weights.npy --output=@next_count.npy >/dev/null
    mv next_weights.npy weights.npy
    mv next_count.npy count.npy
    step=$((step + 1))
done
# What is printed here is read from the last step's own results.
call --function=main --input=@x.npy --input=@y.npy --input=@weights.npy --input=@count.npy \
    --output=- --output=- --output=-
