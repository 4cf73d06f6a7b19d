package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"connectrpc.com/connect"

	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

// addedFixture is a whole system with a project for each kind of controller.
type addedFixture struct {
	runners  *client.Runners
	projects map[string]int64
}

// addedFigures are the names of the figures of [measureAdded].
func addedFigures() []string {
	var names []string
	for _, kind := range []string{"none", "policy", "webhook"} {
		names = append(names, "added_p50_ms."+kind, "added_p99_ms."+kind)
	}
	return names
}

// measureAdded measures what admission adds to a job: from its creation until it waits for a runner.
func measureAdded(ctx context.Context, f *fixture, size Size, measured Measured) {
	check(onFixture(ctx, f.programs, func(f *fixture) {
		a := newAddedFixture(ctx, f)
		times := map[string][]float64{}
		var takes []func(int)
		for kind := range a.projects {
			takes = append(takes, func(int) { times[kind] = append(times[kind], a.added(ctx, kind)) })
		}
		rotate(ctx, size.For, takes...)
		for kind, all := range times {
			measured["added_p50_ms."+kind] = beside(median(all), median(times["none"]))
			p99 := beside(percentile(all, 99), percentile(times["none"], 99))
			p99.Note = fmt.Sprintf("%d jobs", len(all))
			measured["added_p99_ms."+kind] = p99
		}
		for _, name := range []string{"added_p50_ms.none", "added_p99_ms.none"} {
			figure := measured[name]
			figure.Baseline = nil
			measured[name] = figure
		}
	}))
}

func newAddedFixture(ctx context.Context, f *fixture) *addedFixture {
	system := f.system(ctx, stack.Options{
		WithoutCluster: true, Runners: true, Admission: true, DatabaseURL: f.postgres(ctx),
	})
	token := readLine(filepath.Join(system.Dir(), "keys", "admin.token"))
	state := client.New(f.httpClient(), system.APIURL(), token)
	admission := state.Admission(f.httpClient(), system.AdmissionURL())
	a := &addedFixture{runners: state.Runners(f.httpClient(), system.RunnersURL()), projects: map[string]int64{}}
	must(a.runners.Runners.CreateRunner(ctx, connect.NewRequest(&runnersv1.CreateRunnerRequest{
		Type:     runnersv1.RunnerType_RUNNER_TYPE_INSTANCE,
		Settings: &runnersv1.RunnerSettings{RunUntagged: true},
	})))
	first := must(state.Projects(ctx))[0]
	for kind, settings := range map[string]*admissionv1.ControllerSettings{
		"none": nil, "policy": {Policy: benchPolicy},
		"webhook": {Webhook: &admissionv1.Webhook{Url: "http://" + acceptingServer(ctx, f)}},
	} {
		made := must(state.Directory.CreateProject(ctx,
			connect.NewRequest(&statev1.CreateProjectRequest{GroupId: first.GetGroupId(), Name: kind})))
		id := made.Msg.GetProject().GetId()
		a.projects[kind] = id
		if settings == nil {
			continue
		}
		settings.Name = kind
		request := &admissionv1.CreateControllerRequest{
			Level: admissionv1.ControllerLevel_CONTROLLER_LEVEL_PROJECT, OwnerId: id, Settings: settings,
		}
		repeated(ctx, func() error {
			_, err := admission.Controllers.CreateController(ctx, connect.NewRequest(request))
			return err
		})
	}
	for kind := range a.projects {
		repeated(ctx, func() error {
			_, err := a.create(ctx, kind)
			return err
		})
	}
	return a
}

// repeated calls fn until it succeeds: services learn about new projects from events.
func repeated(ctx context.Context, fn func() error) {
	poll := time.NewTicker(waitPause)
	defer poll.Stop()
	for err := fn(); err != nil; err = fn() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			check(err)
		}
	}
}

// create creates a pipeline with one job.
func (a *addedFixture) create(ctx context.Context, kind string) (*runnersv1.Job, error) {
	made, err := a.runners.Pipelines.CreatePipeline(ctx, connect.NewRequest(&runnersv1.CreatePipelineRequest{
		ProjectId: a.projects[kind], File: []byte("test: {script: [make]}\n"), Ref: "main",
	}))
	if err != nil {
		return nil, err
	}
	return made.Msg.GetPipeline().GetJobs()[0], nil
}

// added returns the milliseconds from the creation of a job until it waits for a runner.
func (a *addedFixture) added(ctx context.Context, kind string) float64 {
	j := must(a.create(ctx, kind))
	poll := time.NewTicker(waitPause)
	defer poll.Stop()
	for j.GetState() != runnersv1.JobState_JOB_STATE_PENDING {
		<-poll.C
		check(interrupted(ctx))
		got := must(a.runners.Jobs.GetJob(ctx, connect.NewRequest(&runnersv1.GetJobRequest{Id: j.GetId()})))
		j = got.Msg.GetJob()
	}
	return milliseconds(j.GetPendingSince().AsTime().Sub(j.GetCreatedAt().AsTime()))
}
