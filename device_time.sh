W=/tmp/w; mkdir -p $W; cd $W; R=$OLDPWD
N=$R/build/pare; O=$R/old/build/pare
t() { local s=$(date +%s.%N); "$@" > $W/log 2>&1; local c=$?; local e=$(date +%s.%N); echo "$(echo "$e - $s" | bc) s exit $c: $(tail -1 $W/log | cut -c1-150)  [$*]"; }
export OMP_NUM_THREADS=2 MKL_NUM_THREADS=2
$N init gpt2 -o gpt2 > /dev/null
for r in 1 2 3; do
t $O rewrite gpt2 -o a$r --passes auto
t $N rewrite gpt2 -o b$r --passes auto
t $O verify gpt2 a$r
t $N verify gpt2 b$r
t $N verify gpt2 gpt2
done
