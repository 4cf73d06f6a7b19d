package execution_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"lockstep.internal/services/runners/gitlab"
)

// BenchmarkAppendTrace appends parts of 1 KiB to many traces at once, as the HTTP handler does: it authenticates first.
func BenchmarkAppendTrace(b *testing.B) {
	f := newFixture(b)
	jobs := f.serveLimit(f.first.store, f.first.keys, 1<<30)
	part := []byte(strings.Repeat("0123456789abcde\n", 64))
	var next atomic.Int64
	refs := make([]gitlab.JobRef, 64)
	for i := range refs {
		refs[i] = f.running(int64(i) + 1)
	}
	b.SetBytes(int64(len(part)))
	b.SetParallelism(8)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		ref := refs[next.Add(1)%int64(len(refs))]
		for offset := int64(0); pb.Next(); {
			if err := jobs.Authentic(b.Context(), ref); err != nil {
				b.Error(err)
				return
			}
			size, _, err := jobs.AppendTrace(b.Context(), ref, offset, part)
			if err != nil {
				b.Error(err)
				return
			}
			offset = size
		}
	})
}
