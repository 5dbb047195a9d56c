set -x
export PATH=$PATH:/usr/local/cuda/bin
tools/setup.sh test > $OUT/setup.log 2>&1; make configure >> $OUT/setup.log 2>&1
(time cmake --build build -j16) > $OUT/build.log 2>&1; tail -3 $OUT/build.log
cp -r .deps old/.deps 2>/dev/null
(cd old && cmake -S . -G Ninja -DPARE_TORCH="$(cat ../.deps/torch-path)" -B build > /dev/null 2>&1 && cmake --build build -j16 --target pare) > $OUT/oldbuild.log 2>&1; tail -1 $OUT/oldbuild.log
nvidia-smi | head -15
(time tools/campaign.py build/test_attacks --draws 20000 --jobs 16 --first 500000) > $OUT/campaign.txt 2>&1; tail -25 $OUT/campaign.txt
