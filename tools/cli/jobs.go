package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/pipelines"
	"lockstep.internal/tools/trace"
)

const jobStatePrefix = "JOB_STATE_"

func (a *app) jobs() *cobra.Command {
	c := group("jobs", "Show CI jobs, their output and why they wait, and cancel or retry them", a.jobList(), a.jobGet(),
		a.jobTrace(), a.jobWhy(), a.jobCancel(), a.jobRetry(), a.jobArtifacts())
	c.Aliases = []string{"job"}
	return c
}

// jobReference is a job by its id, or by its name in a pipeline.
type jobReference struct{ pipeline int64 }

const jobArgument = "JOB is the id of a job, or with --pipeline its name."

func (r *jobReference) flags(a *app, c *cobra.Command) {
	c.Flags().Int64Var(&r.pipeline, "pipeline", 0, "pipeline that has a job with this name")
	_ = c.RegisterFlagCompletionFunc("pipeline", a.completePipelineFlag)
	c.ValidArgsFunction = a.completeJobs(r)
}

// find returns the id of a job.
func (r *jobReference) find(ctx context.Context, api *client.Runners, text string) (int64, error) {
	if r.pipeline == 0 {
		id, err := parseID("JOB", text)
		if err != nil {
			return 0, fault.New(errcode.InvalidArgument, "%v, or a name with --pipeline", err)
		}
		return id, nil
	}
	response, err := api.Pipelines.GetPipeline(ctx,
		connect.NewRequest(&runnersv1.GetPipelineRequest{Id: r.pipeline}))
	if err != nil {
		return 0, err
	}
	names := make([]string, 0, len(response.Msg.GetPipeline().GetJobs()))
	for _, j := range response.Msg.GetPipeline().GetJobs() {
		if j.GetName() == text || strconv.FormatInt(j.GetId(), 10) == text {
			return j.GetId(), nil
		}
		names = append(names, strconv.Quote(j.GetName()))
	}
	if more := len(names) - maxCandidates; more > 0 {
		names = append(names[:maxCandidates], fmt.Sprintf("%d more", more))
	}
	return 0, fault.New(errcode.NotFound, "pipeline %d has no job %q: it has %s", r.pipeline, text,
		strings.Join(names, ", "))
}

// jobCommand returns a command about one job. run gets its id.
func (a *app) jobCommand(
	use, short, long string, run func(ctx context.Context, api *client.Runners, id int64) error,
) *cobra.Command {
	var reference jobReference
	if long == "" {
		long = short + "."
	}
	c := &cobra.Command{
		Use: use + " JOB", Short: short, Args: exactly("JOB"),
		Long:    long + "\n" + jobArgument,
		Example: fmt.Sprintf("  lockstep jobs %[1]s 7301\n  lockstep jobs %[1]s compile --pipeline 1042", use),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.runnersAPI()
			if err != nil {
				return err
			}
			id, err := reference.find(c.Context(), api, args[0])
			if err != nil {
				return err
			}
			return run(c.Context(), api, id)
		},
	}
	reference.flags(a, c)
	return c
}

func (a *app) jobList() *cobra.Command {
	request := &runnersv1.ListJobsRequest{}
	var project string
	var states []string
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "List jobs of a project or pipeline, newest first", Args: exactly(),
		Example: "  lockstep jobs list --pipeline 1042 --retried\n  lockstep jobs list --project shop/web --state pending",
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if request.States, err = enumFlag[runnersv1.JobState](stateFlagName, states, jobStatePrefix,
				runnersv1.JobState_value); err != nil {
				return err
			}
			if request.GetPipelineId() != 0 && project != "" {
				return usage(c, "set either --pipeline or --project")
			}
			api, names, err := a.runnersAndNames(c.Context())
			if err != nil {
				return err
			}
			if request.GetPipelineId() == 0 {
				if request.ProjectId, err = names.projectOrOnly(project); err != nil {
					return err
				}
			}
			found, err := listJobs(c.Context(), api, request, limit)
			if err != nil {
				return err
			}
			return a.print(found, jobTable(time.Now(), found.GetJobs()...))
		},
	}
	a.projectFlag(c, &project, "project", "project; default: the only one that you can see")
	c.Flags().Int64Var(&request.PipelineId, "pipeline", 0, "only jobs of this pipeline")
	_ = c.RegisterFlagCompletionFunc("pipeline", a.completePipelineFlag)
	stateFlag(c, &states, jobStatePrefix, runnersv1.JobState_value)
	c.Flags().BoolVar(&request.Retried, "retried", false, "include jobs that were retried")
	c.Flags().IntVar(&limit, "limit", 100, "largest number of jobs; 0 for all")
	return c
}

func listJobs(
	ctx context.Context, api *client.Runners, request *runnersv1.ListJobsRequest, limit int,
) (*runnersv1.ListJobsResponse, error) {
	all, token, err := readPages(limit, func(size int32, token string) ([]*runnersv1.Job, string, error) {
		page := proto.CloneOf(request)
		page.PageSize, page.PageToken = size, token
		response, err := api.Jobs.ListJobs(ctx, connect.NewRequest(page))
		if err != nil {
			return nil, "", err
		}
		return response.Msg.GetJobs(), response.Msg.GetNextPageToken(), nil
	})
	if err != nil {
		return nil, err
	}
	return &runnersv1.ListJobsResponse{Jobs: all, NextPageToken: token}, nil
}

func jobTable(now time.Time, all ...*runnersv1.Job) table {
	t := table{header: []string{"ID", "NAME", "STAGE", "STATE", "ATTEMPT", "DURATION", "RUNNER", "REASON"}}
	for _, j := range all {
		t.rows = append(t.rows, []string{
			strconv.FormatInt(j.GetId(), 10),
			trace.Line(j.GetName()),
			trace.Line(j.GetStage()),
			jobState(j),
			strconv.Itoa(int(j.GetAttempt())),
			jobDuration(j, now),
			idOrEmpty(j.GetRunnerId()),
			trace.Line(j.GetReason()),
		})
	}
	return t
}

// jobState returns the state of a job, and whether its failure was allowed.
func jobState(j *runnersv1.Job) string {
	if j.GetFailureAllowed() {
		return pipelines.JobState(j) + " (allowed)"
	}
	return pipelines.JobState(j)
}

// jobDuration returns how long a job has run; empty before it starts.
func jobDuration(j *runnersv1.Job, now time.Time) string {
	if j.GetStartedAt() == nil {
		return ""
	}
	return trace.Span(pipelines.Took(j, now))
}

// byteSize returns a size in the largest unit in which it is at least 1.
func byteSize(size int64) string {
	const unit = 1024
	value, prefixes := float64(size), "KMGTPE"
	if value < unit {
		return fmt.Sprintf("%d B", size)
	}
	for value /= unit; value >= unit; value /= unit {
		prefixes = prefixes[1:]
	}
	return fmt.Sprintf("%.1f %ciB", value, prefixes[0])
}

func idOrEmpty(id int64) string {
	if id == 0 {
		return ""
	}
	return strconv.FormatInt(id, 10)
}

func (a *app) jobGet() *cobra.Command {
	return a.jobCommand("get", "Show one job", "",
		func(ctx context.Context, api *client.Runners, id int64) error {
			response, err := api.Jobs.GetJob(ctx, connect.NewRequest(&runnersv1.GetJobRequest{Id: id}))
			if err != nil {
				return err
			}
			names, err := a.namesOfAPI(ctx)
			if err != nil {
				return err
			}
			return a.print(response.Msg, jobFields(names, time.Now(), response.Msg.GetJob()))
		})
}

func jobFields(names *names, now time.Time, j *runnersv1.Job) table {
	var t fields
	t.add("job", strconv.FormatInt(j.GetId(), 10))
	t.add("name", trace.Line(j.GetName()))
	t.add("pipeline", strconv.FormatInt(j.GetPipelineId(), 10))
	t.add("project", names.project(j.GetProjectId()))
	t.add("stage", trace.Line(j.GetStage()))
	t.add("state", jobState(j))
	t.add("reason", trace.Line(j.GetReason()))
	t.add("message", trace.Line(j.GetMessage()))
	if j.GetExitCode() != 0 {
		t.add("exit code", strconv.Itoa(int(j.GetExitCode())))
	}
	t.add("tags", trace.Line(strings.Join(j.GetTags(), ", ")))
	t.add("needs", trace.Line(strings.Join(j.GetNeeds(), ", ")))
	t.add("protected", yesOrEmpty(j.GetProtected()))
	t.add("attempt", strconv.Itoa(int(j.GetAttempt())))
	t.add("retry of", idOrEmpty(j.GetRetryOf()))
	t.add("retried by", idOrEmpty(j.GetRetriedBy()))
	t.add("runner", idOrEmpty(j.GetRunnerId()))
	t.add("timeout", shortDuration(j.GetTimeout()))
	t.add("created", clock(j.GetCreatedAt()))
	t.add("pending since", clock(j.GetPendingSince()))
	t.add("started", clock(j.GetStartedAt()))
	t.add("finished", clock(j.GetFinishedAt()))
	t.add("duration", jobDuration(j, now))
	if j.GetTraceSize() > 0 {
		size := byteSize(j.GetTraceSize())
		if j.GetTraceVerified() {
			size += ", checksum verified"
		}
		t.add("output", size)
	}
	for _, artifact := range j.GetArtifacts() {
		t.add("artifact "+trace.Line(artifact.GetType()), trace.Line(artifact.GetFilename())+", "+
			byteSize(artifact.GetSize()))
	}
	return t.table()
}

func (a *app) jobCancel() *cobra.Command {
	return a.jobCommand("cancel", "Cancel a job", "Cancel a job. The runner of a running job executes its after_script "+
		"first.",
		func(ctx context.Context, api *client.Runners, id int64) error {
			response, err := api.Jobs.CancelJob(ctx, connect.NewRequest(&runnersv1.CancelJobRequest{Id: id}))
			if err != nil {
				return err
			}
			return a.print(response.Msg, jobTable(time.Now(), response.Msg.GetJob()))
		})
}

func (a *app) jobRetry() *cobra.Command {
	return a.jobCommand("retry", "Replace a job that has ended by a new one", "Replace a job that has ended by a new one "+
		"with the same definition. The jobs that were skipped because of it wait for it again. The output is the new job.",
		func(ctx context.Context, api *client.Runners, id int64) error {
			response, err := api.Jobs.RetryJob(ctx, connect.NewRequest(&runnersv1.RetryJobRequest{Id: id}))
			if err != nil {
				return err
			}
			return a.print(response.Msg, jobTable(time.Now(), response.Msg.GetJob()))
		})
}

func (a *app) jobArtifacts() *cobra.Command {
	return a.jobCommand("artifacts", "List the files that a job has uploaded", "",
		func(ctx context.Context, api *client.Runners, id int64) error {
			response, err := api.Jobs.GetJob(ctx, connect.NewRequest(&runnersv1.GetJobRequest{Id: id}))
			if err != nil {
				return err
			}
			t := table{header: []string{"TYPE", "FILE", "SIZE", "EXPIRES"}}
			for _, artifact := range response.Msg.GetJob().GetArtifacts() {
				expires := "never"
				if artifact.GetExpiresAt() != nil {
					expires = artifact.GetExpiresAt().AsTime().Local().Format(time.DateTime)
				}
				t.rows = append(t.rows, []string{
					trace.Line(artifact.GetType()), trace.Line(artifact.GetFilename()), byteSize(artifact.GetSize()), expires,
				})
			}
			return a.print(response.Msg, t)
		})
}
