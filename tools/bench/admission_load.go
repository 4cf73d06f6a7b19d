package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep.internal/services/admission/controller"
	"lockstep.internal/services/admission/policy"
)

const (
	// controllersOfJob is the number of controllers that decide about a job.
	controllersOfJob = 3
	// loadJobs begin admission at the same time in a turn.
	loadJobs = 500
	// bareEvaluations is the number of goroutines and connections of the baseline of policies: that of a replica.
	bareEvaluations = 16
	// silentJobs wait for a controller that does not answer.
	silentJobs = 10_000
	// silentSamples is the number of jobs whose latencies are measured in each of the two states.
	silentSamples = 1000
)

// measureWebhooks measures the requests to three web servers beside bare requests to the same server.
func (b *admissionFixture) measureWebhooks(ctx context.Context, size Size, measured Measured) {
	address := acceptingServer(ctx, b.f)
	for i := range controllersOfJob {
		b.addController(ctx, threeWebhooksProject, webhookSettings(numbered("webhook", i), "http://"+address+"/decide"))
	}
	message, _ := b.preparing(threeWebhooksProject)
	var sent struct {
		Variables map[string]string `json:"variables"`
	}
	check(json.Unmarshal(message.Data, &sent))
	body := must(json.Marshal([]any{map[string]any{"id": 1, "variables": sent.Variables, "tags": []string{}}}))
	request := httpRequest(http.MethodPost, "/decide", "Content-Type: application/json\r\n", body)
	measured["webhooks_per_s"] = takeTurns(ctx, size.For,
		func(int) float64 { return controllersOfJob * b.rate(ctx, threeWebhooksProject, size.of(loadJobs)) },
		func(int) float64 {
			return callRate(ctx, "the web server", admissionConcurrency, turnOf(size), func(int) caller {
				return connectHTTP(ctx, "the web server", address, http.StatusOK, func() []byte { return request })
			})
		})
}

// measurePolicies measures jobs through three policies beside bare evaluations with a commit for each job.
func (b *admissionFixture) measurePolicies(ctx context.Context, size Size, measured Measured) {
	for i := range controllersOfJob {
		b.addController(ctx, threePoliciesProject, controller.Settings{Name: numbered("policy", i), Policy: benchPolicy})
	}
	parsed := must(policy.Parse("bench", []byte(benchPolicy)))
	pool := b.f.pool(ctx, b.url, "public")
	must(pool.Exec(ctx, `CREATE TABLE bench (id bigint GENERATED ALWAYS AS IDENTITY, answer jsonb)`))
	bare := func() error {
		in := policy.Input{
			Job:  policy.Job{ID: 1, Name: "test", Stage: "test"},
			User: policy.User{ID: admissionUser, Login: "ada"},
		}
		var answer any
		for range controllersOfJob {
			evaluated, err := parsed.Evaluate(ctx, in)
			if err != nil {
				return fmt.Errorf("evaluate: %w", err)
			}
			answer = evaluated.Accepted
		}
		_, err := pool.Exec(ctx, `INSERT INTO bench (answer) VALUES (to_jsonb($1::bool))`, answer)
		return err //nolint:wrapcheck // shown as it is
	}
	measured["cel_per_s"] = takeTurns(ctx, size.For,
		func(int) float64 { return b.rate(ctx, threePoliciesProject, size.of(loadJobs)) },
		func(int) float64 {
			began, jobs := time.Now(), size.of(loadJobs)
			var group errgroup.Group
			group.SetLimit(bareEvaluations)
			for range jobs {
				group.Go(bare)
			}
			check(group.Wait())
			return perSecond(jobs, began)
		})
}

// measureSilent measures other jobs while many wait for a controller that never answers, beside the time before.
func (b *admissionFixture) measureSilent(ctx context.Context, size Size, measured Measured) {
	b.addController(ctx, onePolicyProject, controller.Settings{Name: "policy", Policy: benchPolicy})
	address := controllerServer(ctx, b.f, func(w http.ResponseWriter, _ int64) { w.WriteHeader(http.StatusAccepted) })
	b.addController(ctx, silentProject, webhookSettings("silent", "http://"+address))
	sample := func() []float64 {
		times := make([]float64, size.of(silentSamples))
		for i := range times {
			times[i] = b.latency(ctx, onePolicyProject)
		}
		return times
	}
	before := sample()
	jobs := size.of(silentJobs)
	b.prepare(ctx, silentProject, jobs)
	b.awaitAsked(ctx, jobs)
	measured["silent_p99_ms"] = beside(percentile(sample(), 99), percentile(before, 99))
	measured["silent_mb"] = Figure{Value: b.service.peakMB(), Note: fmt.Sprintf("%d jobs wait", jobs)}
}

// awaitAsked waits until so many jobs wait for callbacks.
func (b *admissionFixture) awaitAsked(ctx context.Context, jobs int) {
	poll := time.NewTicker(waitPause)
	defer poll.Stop()
	for asked := 0; asked < jobs; <-poll.C {
		check(b.store.Pool.QueryRow(ctx, `SELECT count(*) FROM asks WHERE due_at IS NULL`).Scan(&asked))
		check(interrupted(ctx))
	}
}
