package api

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	"lockstep.internal/libs/apirequest"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/schemas/gen/lockstep/admission/v1/admissionv1connect"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/postgres"
)

// defaultDecisions is the number of decisions on a page.
const defaultDecisions = 100

type decisionService struct {
	admissionv1connect.UnimplementedDecisionServiceHandler

	jobs    postgres.Jobs
	allowed permissions
}

// selections are the stored outcomes of each outcome.
var selections = map[admissionv1.Outcome]postgres.Page{
	admissionv1.Outcome_OUTCOME_UNSPECIFIED: {},
	admissionv1.Outcome_OUTCOME_OPEN:        {Outcome: postgres.Open},
	admissionv1.Outcome_OUTCOME_ADMITTED:    {Outcome: string(chain.Admitted)},
	admissionv1.Outcome_OUTCOME_DENIED: {
		Outcome: string(chain.Rejected), Causes: []string{string(chain.CauseDenied), string(chain.CauseNoRunner)},
	},
	admissionv1.Outcome_OUTCOME_TIMEOUT: {
		Outcome: string(chain.Rejected), Causes: []string{string(chain.CauseTimeout)},
	},
	admissionv1.Outcome_OUTCOME_CANCELED: {Outcome: string(chain.Canceled)},
}

func (s *decisionService) ListDecisions(
	ctx context.Context, r *connect.Request[admissionv1.ListDecisionsRequest],
) (*connect.Response[admissionv1.ListDecisionsResponse], error) {
	m := r.Msg
	if err := apirequest.RequireID("project_id", m.GetProjectId()); err != nil {
		return nil, err
	}
	page, known := selections[m.GetOutcome()]
	if !known {
		return nil, fault.New(errcode.InvalidArgument, "outcome: not an outcome").With("field", "outcome")
	}
	scope := directory.Scope{Kind: directory.Project, ID: m.GetProjectId()}
	err := s.allowed.require(ctx, scope, directory.RoleReader, fmt.Sprintf("project %d", scope.ID))
	if err != nil {
		return nil, err
	}
	page.ProjectID = m.GetProjectId()
	if page.Size, err = apirequest.PageSize(m.GetPageSize(), defaultDecisions); err != nil {
		return nil, err
	}
	if page.Before, err = apirequest.PageToken(m.GetPageToken()); err != nil {
		return nil, err
	}
	found, err := s.jobs.List(ctx, page)
	if err != nil {
		return nil, err
	}
	response := &admissionv1.ListDecisionsResponse{
		NextPageToken: apirequest.NextPage(found, page.Size, func(j decide.Job) int64 { return j.JobID }),
	}
	for i := range found {
		response.Decisions = append(response.Decisions, decisionMessage(&found[i]))
	}
	return connect.NewResponse(response), nil
}

func (s *decisionService) ExplainJob(
	ctx context.Context, r *connect.Request[admissionv1.ExplainJobRequest],
) (*connect.Response[admissionv1.ExplainJobResponse], error) {
	id := r.Msg.GetJobId()
	if err := apirequest.RequireID("job_id", id); err != nil {
		return nil, err
	}
	found, exists, err := s.jobs.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	missing := fault.New(errcode.NotFound, "job %d has not asked for admission, or its decision is no longer kept", id)
	if !exists {
		return nil, missing
	}
	scope := directory.Scope{Kind: directory.Project, ID: found.ProjectID}
	err = s.allowed.require(ctx, scope, directory.RoleReader, fmt.Sprintf("job %d", id))
	if fault.Is(err, errcode.NotFound) {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	attempts, err := s.jobs.AttemptsOfJob(ctx, id)
	if err != nil {
		return nil, err
	}
	response := &admissionv1.ExplainJobResponse{Decision: decisionMessage(&found)}
	for _, a := range attempts {
		response.Attempts = append(response.Attempts, &admissionv1.Attempt{
			ControllerId: a.ControllerID, Attempt: number(a.Attempt), SentAt: timestamp(a.SentAt),
			EndedAt: timestamp(a.EndedAt), Status: number(a.Status), Result: a.Result,
		})
	}
	return connect.NewResponse(response), nil
}

func outcomeOf(j *decide.Job) admissionv1.Outcome {
	switch j.State.Outcome {
	case chain.Admitted:
		return admissionv1.Outcome_OUTCOME_ADMITTED
	case chain.Canceled:
		return admissionv1.Outcome_OUTCOME_CANCELED
	case chain.Rejected:
		if j.State.Cause == chain.CauseTimeout {
			return admissionv1.Outcome_OUTCOME_TIMEOUT
		}
		return admissionv1.Outcome_OUTCOME_DENIED
	default:
		return admissionv1.Outcome_OUTCOME_OPEN
	}
}

func decisionMessage(j *decide.Job) *admissionv1.Decision {
	d := j.State.Definition
	out := &admissionv1.Decision{
		JobId: j.JobID, ProjectId: j.ProjectID, JobName: j.Name, Outcome: outcomeOf(j), OriginalTags: j.Tags, Tags: d.Tags,
		AcceptedRunnerIds: d.AcceptedRunners, RejectedRunnerIds: d.RejectedRunners, BegunAt: timestamp(j.BegunAt),
		Deadline: timestamp(j.Deadline), EndedAt: timestamp(j.EndedAt),
	}
	for _, r := range j.State.Reasons {
		out.Reasons = append(out.Reasons, chain.Reasons{r}.String())
	}
	for _, p := range j.Prerequisites() {
		message := &admissionv1.Prerequisite{
			ControllerId: p.ControllerID, Name: p.Name, Level: string(p.Level), State: string(p.State), DryRun: p.DryRun,
			Attempt: number(p.Attempt), Reason: p.Reason, AddedTags: p.Diff.AddedTags, RemovedTags: p.Diff.RemovedTags,
			AcceptedRunnerIds: p.Diff.AcceptedRunners, RejectedRunnerIds: p.Diff.RejectedRunners, AskedAt: timestamp(p.AskedAt),
		}
		if p.Decided {
			message.DecidedAt = timestamp(p.At)
		}
		out.Prerequisites = append(out.Prerequisites, message)
	}
	return out
}
