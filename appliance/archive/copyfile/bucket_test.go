package copyfile_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"signalbox/appliance/archive/beneath/beneathtest"
	"signalbox/appliance/archive/copyfile"
	"signalbox/appliance/clock"
)

func TestBucketHoldsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := copyfile.NewBucket(clock.System(), 1000)
		start := time.Now()
		for range 10 {
			if err := b.Wait(t.Context(), 500); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 4500*time.Millisecond {
			t.Errorf("5000 bytes at 1000/s took %v", took)
		}
		time.Sleep(time.Hour) // time nobody used is not saved up
		start = time.Now()
		for range 3 {
			if err := b.Wait(t.Context(), 1000); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("took %v", took)
		}

		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		done := make(chan error)
		go func() { done <- b.Wait(ctx, 1) }()
		synctest.Wait()
		cancel(stop)
		if err := <-done; err != stop {
			t.Error(err)
		}

		b.SetRate(0)
		start = time.Now()
		for range 10 {
			if err := b.Wait(t.Context(), 1<<30); err != nil || time.Since(start) > 0 {
				t.Fatal(err, time.Since(start))
			}
		}
	})
	var none *copyfile.Bucket
	if err := none.Wait(t.Context(), 1<<30); err != nil || none.Rate() != 0 {
		t.Error(err)
	}
}

func TestCopyUnderALimit(t *testing.T) {
	dir := t.TempDir()
	content(t, dir, 300_001)
	r := beneathtest.Open(t, dir)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		blocks := 0
		_, err := copyfile.Copy(t.Context(), r, "source", r, "target", copyfile.Options{Limit: copyfile.NewBucket(clock.System(), 100_000),
			Progress: func(int64, int64) { blocks++ }})
		must(t, err)
		if took := time.Since(start); took < 2700*time.Millisecond || took > 3001*time.Millisecond {
			t.Errorf("300001 bytes at 100000/s took %v", took)
		}
		if blocks < 10 {
			t.Errorf("progress moved %d times", blocks)
		}
	})
}
