package event_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
)

// BenchmarkDecode decodes a message of a watcher without its data.
func BenchmarkDecode(b *testing.B) {
	e, err := event.New(event.Attributes{
		Type: "dev.lockstep.observed.workload.v1", Source: event.AgentSource("local", 7, "watcher"), Subject: "shop/web",
		ID: "0198f2a4-7c1d-7e55-9f3b-2f8d7f6e5a41", Time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
	}, json.RawMessage(`{}`))
	require.NoError(b, err)
	e.SetExtension(event.TraceParent, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	msg, err := event.Encode(e, "subject")
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.Decode(msg.Header, msg.Data); err != nil {
			b.Fatal(err)
		}
	}
}
