package chain_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/payload"
)

func TestExamplesOfTheContract(t *testing.T) {
	t.Parallel()
	for name, check := range map[string]func(r *run){
		"accepted": func(r *run) {
			r.admitted(chain.Definition{Tags: []string{"docker", "windows"}}, "controller: it's always-allow-day-wednesday")
		},
		"redirected": func(r *run) {
			r.admitted(chain.Definition{
				Tags: []string{"linux", "us-west"}, AcceptedRunners: []int64{822993167}, RejectedRunners: []int64{822993168},
			}, "controller: user is US employee: retagged region; user only has uid on runner 822993167")
		},
		"rejected": func(r *run) { r.rejected(chain.CauseDenied, "controller: you have no power here") },
	} {
		request, answer := example(t, name+".request.json"), example(t, name+".answer.json")
		sent, err := payload.DecodeJob(request)
		require.NoError(t, err)
		job := chain.Job{
			ID: sent.ID, Tags: sent.Tags, Variables: map[string]string{},
			Runners: []chain.Runner{{ID: 822993167, Tags: []string{"linux", "us-west"}}},
		}
		for variable, value := range sent.Variables {
			job.Variables[variable] = value.String()
		}
		r := &run{t: t, now: start()}
		r.state, r.step = chain.Begin(job, []chain.Controller{controller(11, "controller")}, r.now)
		again, err := payload.DecodeJob(payload.Encode(r.step.Payload))
		require.NoError(t, err)
		require.Equal(t, sent.Variables, again.Variables)
		require.ElementsMatch(t, sent.Tags, again.Tags)

		decoded, err := payload.ReadAnswer("application/json", bytes.NewReader(answer), job.ID)
		require.NoError(t, err)
		r.answer(decoded)
		check(r)
	}
}

func example(t *testing.T, name string) json.RawMessage {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "schemas", "admission", "examples", name))
	require.NoError(t, err)
	return content
}
