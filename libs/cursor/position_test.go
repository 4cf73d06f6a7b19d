package cursor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChanged(t *testing.T) {
	t.Parallel()
	at := position{epoch: 2, last: mark{sequence: 5, id: "e", stored: 50}, created: 1}
	for name, test := range map[string]struct {
		position position
		found    found
		changed  bool
	}{
		"never read":                           {position{}, found{created: 1}, true},
		"read, nothing taken":                  {position{epoch: 1}, found{created: 7, ends: 3}, false},
		"the same":                             {at, found{created: 1, ends: 5, at: &mark{5, "e", 50}}, false},
		"grown":                                {at, found{created: 1, ends: 9, at: &mark{5, "e", 50}}, false},
		"same content in a stream made anew":   {at, found{created: 2, ends: 5, at: &mark{5, "e", 50}}, false},
		"ends before":                          {at, found{created: 1, ends: 4}, true},
		"another event":                        {at, found{created: 1, ends: 5, at: &mark{5, "f", 50}}, true},
		"the same event stored again":          {at, found{created: 1, ends: 5, at: &mark{5, "e", 51}}, true},
		"aged out":                             {at, found{created: 1, ends: 9}, false},
		"gone, and the stream was made anew":   {at, found{created: 2, ends: 9}, true},
		"emptied and made anew, shorter":       {at, found{created: 2, ends: 0}, true},
		"purged up to the cursor, same stream": {at, found{created: 1, ends: 5}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.changed, changed(test.position, test.found) != "")
		})
	}
}
