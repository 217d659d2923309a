#!/bin/sh
#POISE checkpoint=1s grace=10s
saved=$POISE_CHECKPOINTS/count; mkdir -p "$POISE_CHECKPOINTS"
save() { echo "$i" > "$saved.new" && mv "$saved.new" "$saved"; }
i=$(cat "$saved" 2> /dev/null || echo 0)
echo "attempt $POISE_EPOCH starts at step $i"
trap 'save; exit 143' TERM
while [ "$i" -lt 50 ]; do
  sleep 0.1                # one step
  i=$((i + 1)); save
done
