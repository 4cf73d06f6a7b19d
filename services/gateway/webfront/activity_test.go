package webfront

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// frame returns a frame as a browser sends it.
func frame(opcode byte, payload int) []byte {
	header := []byte{0x80 | opcode}
	switch {
	case payload < 126:
		header = append(header, 0x80|byte(payload))
	case payload < 1<<16:
		header = binary.BigEndian.AppendUint16(append(header, 0x80|126), uint16(payload))
	default:
		header = binary.BigEndian.AppendUint64(append(header, 0x80|127), uint64(payload))
	}
	return append(append(header, 1, 2, 3, 4), bytes.Repeat([]byte{0x89}, payload)...)
}

func TestMessagesOfAWebSocketAreInputAndControlFramesAreNot(t *testing.T) {
	const text, binaryData, closing, ping, pong = 1, 2, 8, 9, 10
	var stream []byte
	want := 0
	for _, f := range []struct{ opcode, payload int }{
		{text, 5}, {ping, 100}, {binaryData, 300}, {pong, 0}, {text, 0}, {0, 70_000}, {closing, 2},
	} {
		stream = append(stream, frame(byte(f.opcode), f.payload)...)
		if f.opcode < closing {
			want += max(f.payload, 1)
		}
	}
	for _, size := range []int{1, 2, 3, 7, 100, 4096, len(stream)} {
		var f frames
		got := 0
		for rest := stream; len(rest) > 0; {
			n := min(size, len(rest))
			got += f.input(rest[:n])
			rest = rest[n:]
		}
		require.Equal(t, want, got, "in parts of %d bytes", size)
	}
	require.Equal(t, 3, (&frames{every: true}).input([]byte{0x89, 0, 0}), "another protocol")
}

func TestRequestsAreActivityAndOpenStreamsAreNot(t *testing.T) {
	f := newFixture(t, nil)
	b := f.signedIn()
	f.activity.Take()
	f.clock.pass(time.Hour)
	line, _ := b.streamAs(hello+"/stream", "Accept", "text/event-stream")
	require.Equal(t, "first", line())
	conn := f.webSocket(b, "wss://3000--hello.ws.test/websocket", hello)
	require.Empty(t, f.activity.Take(), "streams that are open")
	require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte("echo")))
	_, data, err := conn.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, "echo", string(data))
	records := f.activity.Take()
	require.Len(t, records, 1)
	require.Equal(t, int64(owner), records[0].UserID)
	require.Equal(t, "id", records[0].WorkspaceID)
	require.Equal(t, 2, records[0].Sessions)
	require.Equal(t, int64(4), records[0].ReceivedBytes)
	f.clock.pass(time.Hour)
	b.Get(hello + "/")
	require.Len(t, f.activity.Take(), 1)
}
