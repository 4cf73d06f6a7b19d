package cursor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRestartReason(t *testing.T) {
	t.Parallel()
	at := cursorRow{epoch: 2, last: mark{sequence: 5, id: "e", stored: 50}, created: 1}
	same := &mark{sequence: 5, id: "e", stored: 50}
	anotherEvent := &mark{sequence: 5, id: "f", stored: 50}
	storedAgain := &mark{sequence: 5, id: "e", stored: 51}
	for name, test := range map[string]struct {
		cursor  cursorRow
		stream  streamState
		changed bool
	}{
		"never read":                           {cursorRow{}, streamState{created: 1}, true},
		"no message handled":                   {cursorRow{epoch: 1}, streamState{created: 7, lastSequence: 3}, false},
		"the same":                             {at, streamState{created: 1, lastSequence: 5, atCursor: same}, false},
		"grown":                                {at, streamState{created: 1, lastSequence: 9, atCursor: same}, false},
		"same content in a stream recreated":   {at, streamState{created: 2, lastSequence: 5, atCursor: same}, false},
		"ends before":                          {at, streamState{created: 1, lastSequence: 4}, true},
		"another event":                        {at, streamState{created: 1, lastSequence: 5, atCursor: anotherEvent}, true},
		"the same event stored again":          {at, streamState{created: 1, lastSequence: 5, atCursor: storedAgain}, true},
		"aged out":                             {at, streamState{created: 1, lastSequence: 9}, false},
		"gone, and the stream was recreated":   {at, streamState{created: 2, lastSequence: 9}, true},
		"emptied and recreated, shorter":       {at, streamState{created: 2, lastSequence: 0}, true},
		"purged up to the cursor, same stream": {at, streamState{created: 1, lastSequence: 5}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.changed, restartReason(test.cursor, test.stream) != "")
		})
	}
}
