package cursor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRestartReason(t *testing.T) {
	t.Parallel()
	at := position{epoch: 2, last: mark{sequence: 5, id: "e", stored: 50}, created: 1}
	for name, test := range map[string]struct {
		position position
		stream   streamState
		changed  bool
	}{
		"never read":                           {position{}, streamState{created: 1}, true},
		"read, nothing taken":                  {position{epoch: 1}, streamState{created: 7, lastSequence: 3}, false},
		"the same":                             {at, streamState{created: 1, lastSequence: 5, atCursor: &mark{5, "e", 50}}, false},
		"grown":                                {at, streamState{created: 1, lastSequence: 9, atCursor: &mark{5, "e", 50}}, false},
		"same content in a stream recreated":   {at, streamState{created: 2, lastSequence: 5, atCursor: &mark{5, "e", 50}}, false},
		"ends before":                          {at, streamState{created: 1, lastSequence: 4}, true},
		"another event":                        {at, streamState{created: 1, lastSequence: 5, atCursor: &mark{5, "f", 50}}, true},
		"the same event stored again":          {at, streamState{created: 1, lastSequence: 5, atCursor: &mark{5, "e", 51}}, true},
		"aged out":                             {at, streamState{created: 1, lastSequence: 9}, false},
		"gone, and the stream was recreated":   {at, streamState{created: 2, lastSequence: 9}, true},
		"emptied and recreated, shorter":       {at, streamState{created: 2, lastSequence: 0}, true},
		"purged up to the cursor, same stream": {at, streamState{created: 1, lastSequence: 5}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.changed, restartReason(test.position, test.stream) != "")
		})
	}
}
