package api

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/schedule"
)

// jobStates are the states of jobs in messages. Those of pipelines have the same numbers.
var jobStates = map[job.State]runnersv1.JobState{
	job.Created:   runnersv1.JobState_JOB_STATE_CREATED,
	job.Preparing: runnersv1.JobState_JOB_STATE_PREPARING,
	job.Pending:   runnersv1.JobState_JOB_STATE_PENDING,
	job.Running:   runnersv1.JobState_JOB_STATE_RUNNING,
	job.Canceling: runnersv1.JobState_JOB_STATE_CANCELING,
	job.Success:   runnersv1.JobState_JOB_STATE_SUCCESS,
	job.Failed:    runnersv1.JobState_JOB_STATE_FAILED,
	job.Canceled:  runnersv1.JobState_JOB_STATE_CANCELED,
	job.Skipped:   runnersv1.JobState_JOB_STATE_SKIPPED,
}

var pipelineStates = map[job.State]runnersv1.PipelineState{
	job.Created:   runnersv1.PipelineState_PIPELINE_STATE_CREATED,
	job.Preparing: runnersv1.PipelineState_PIPELINE_STATE_PREPARING,
	job.Pending:   runnersv1.PipelineState_PIPELINE_STATE_PENDING,
	job.Running:   runnersv1.PipelineState_PIPELINE_STATE_RUNNING,
	job.Canceling: runnersv1.PipelineState_PIPELINE_STATE_CANCELING,
	job.Success:   runnersv1.PipelineState_PIPELINE_STATE_SUCCESS,
	job.Failed:    runnersv1.PipelineState_PIPELINE_STATE_FAILED,
	job.Canceled:  runnersv1.PipelineState_PIPELINE_STATE_CANCELED,
	job.Skipped:   runnersv1.PipelineState_PIPELINE_STATE_SKIPPED,
}

// statesOf converts the states of a request.
func statesOf[M comparable](known map[job.State]M, states []M) ([]job.State, error) {
	var out []job.State
	for _, wanted := range states {
		found := false
		for state, message := range known {
			if message == wanted {
				out = append(out, state)
				found = true
			}
		}
		if !found {
			return nil, fault.New(errcode.InvalidArgument, "states: %v is not a state", wanted).With("field", "states")
		}
	}
	return out, nil
}

func jobMessage(j *job.Job, d postgres.Details) *runnersv1.Job {
	out := &runnersv1.Job{
		Id: j.ID, PipelineId: j.PipelineID, ProjectId: j.ProjectID, Name: j.Name, Stage: j.Stage, Tags: j.Tags,
		Protected: j.Protected, State: jobStates[j.State], Reason: string(j.Reason), Message: sentence(j.Reason),
		// Runners report unsigned numbers of 32 bits, of which scripts use 8 bits.
		ExitCode:       int32(j.ExitCode),
		FailureAllowed: j.FailureAllowed(), Attempt: int32(min(j.Attempt, 1<<30)), RetryOf: j.RetryOf, RetriedBy: j.RetriedBy,
		RunnerId: j.RunnerID, Timeout: durationpb.New(j.Timeout), CreatedAt: timestamp(j.CreatedAt),
		PendingSince: timestamp(j.PendingSince), StartedAt: timestamp(j.StartedAt), FinishedAt: timestamp(j.FinishedAt),
		TraceSize: d.TraceSize, TraceVerified: d.TraceVerified, Needs: d.Needs, PreparingSince: timestamp(j.PreparingSince),
	}
	if a := j.Admission; a != nil {
		out.Admission = &runnersv1.JobAdmission{
			OriginalTags: a.OriginalTags, AcceptedRunnerIds: a.AcceptedRunners, RejectedRunnerIds: a.RejectedRunners,
			Reason: a.Reason,
		}
	}
	for _, a := range d.Artifacts {
		out.Artifacts = append(out.Artifacts, &runnersv1.Artifact{
			Type: a.Type, Filename: a.Filename, Size: a.Size, ExpiresAt: timestamp(a.ExpiresAt),
		})
	}
	return out
}

func prerequisiteMessage(p *job.Prerequisite) *runnersv1.Prerequisite {
	return &runnersv1.Prerequisite{
		ControllerId: p.ControllerID, Name: p.Name, Level: p.Level, Position: int32(min(p.Position, 1<<30)), State: p.State,
		DryRun: p.DryRun, Attempt: int32(min(p.Attempt, 1<<30)), AskedAt: timestamp(p.AskedAt),
		Duration: durationpb.New(time.Duration(p.DurationMS) * time.Millisecond), Reason: p.Reason,
		AddedTags: p.AddedTags, RemovedTags: p.RemovedTags, AcceptedRunnerIds: p.AcceptedRunners,
		RejectedRunnerIds: p.RejectedRunners,
	}
}

func pipelineMessage(p *schedule.Pipeline) *runnersv1.Pipeline {
	return &runnersv1.Pipeline{
		Id: p.ID, ProjectId: p.ProjectID, Ref: p.Ref, Protected: p.Protected, State: pipelineStates[p.State.State],
		Warnings: p.Warnings, CreatedBy: p.CreatedBy, CreatedAt: timestamp(p.CreatedAt), FinishedAt: timestamp(p.FinishedAt),
	}
}

// pipelineWithJobs returns a pipeline with the state that follows from its jobs.
func pipelineWithJobs(
	p *schedule.Pipeline, attempts []schedule.Attempt, details map[int64]postgres.Details,
) *runnersv1.Pipeline {
	current := *p
	current.State = pipeline.StateOf(statusesOf(attempts))
	out := pipelineMessage(&current)
	for i := range attempts {
		j := &attempts[i].Job
		if n := len(out.GetStages()); n == 0 || out.GetStages()[n-1] != j.Stage {
			out.Stages = append(out.Stages, j.Stage)
		}
		out.Jobs = append(out.Jobs, jobMessage(j, details[j.ID]))
	}
	return out
}

func statusesOf(attempts []schedule.Attempt) []pipeline.Status {
	out := make([]pipeline.Status, len(attempts))
	for i := range attempts {
		out[i] = attempts[i].Status()
	}
	return out
}

// timestamp returns nil for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
