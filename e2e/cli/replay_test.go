package cli_test

import (
	"bytes"
	"encoding/json"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

func TestReplayIsDeterministic(t *testing.T) {
	s := shared.Parallel(t)
	s.CreateRunning("replayed")

	cli := s.CLI()
	for _, family := range []string{
		topology.FamilyWorkspace, topology.FamilyObserved, topology.FamilyApplied, topology.FamilyDesiredLog,
	} {
		t.Run(family, func(t *testing.T) {
			cli := cli.In(t)
			kept := s.Records(family)
			require.NotEmpty(t, kept)
			args := []string{"replay", family + ".>", "--to-seq", strconv.FormatUint(kept[len(kept)-1].Sequence, 10)}
			first := cli.OK(args...)
			require.Equal(t, first, cli.OK(args...), "the same bytes")

			lines := bytes.Split(bytes.TrimSuffix([]byte(first), []byte("\n")), []byte("\n"))
			require.Len(t, lines, len(kept))
			for i, line := range lines {
				e, err := event.UnmarshalStructured(line)
				require.NoError(t, err)
				require.NoError(t, events.Validate(e.Type(), e.Data()))
				original, err := event.Decode(kept[i].Header, kept[i].Data)
				require.NoError(t, err)
				require.Equal(t, original.ID(), e.ID(), "line %d is in the order of the stream", i)
				require.JSONEq(t, string(original.Data()), string(e.Data()))
			}
		})
	}
	positioned := cli.OK("replay", "workspace.>", "--positions", "--from-seq", "2", "--to-seq", "3")
	for i, line := range bytes.Split(bytes.TrimSpace([]byte(positioned)), []byte("\n")) {
		var at struct {
			Sequence string `json:"natssequence"`
			Subject  string `json:"natssubject"`
		}
		require.NoError(t, json.Unmarshal(line, &at))
		require.Equal(t, strconv.Itoa(i+2), at.Sequence)
		require.Contains(t, at.Subject, ".workspace.")
	}
}
