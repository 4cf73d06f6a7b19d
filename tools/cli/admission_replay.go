package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/controller"
	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/nats"
	"lockstep.internal/services/admission/policy"
	"lockstep.internal/tools/replay"
)

func (a *app) admissionReplay() *cobra.Command {
	var file, since string
	c := &cobra.Command{
		Use: "replay --policy FILE", Short: "List what a policy would have decided about earlier jobs", Args: exactly(),
		Long: `Run a policy over the jobs that waited for admission since a time, and list those that it would have rejected
or changed. The command reads the streams JOBS and RUNNERS with the key of operators, decides on this machine and
changes nothing. It takes the runners as they are now.

The streams have the groups of a project by their paths only, and no memberships: rules about ids of groups and about
groups of the user do not match here. Jobs that were created without admission have no variables in the stream: they
are counted, and not decided.`,
		Example: "  lockstep admission replay --policy zones.yaml --since 7d\n" +
			"  lockstep admission replay --policy zones.yaml --since 24h -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			if file == "" {
				return usage(c, "want --policy")
			}
			content, err := readInput(file, "policy", policy.MaxBytes, c.InOrStdin())
			if err != nil {
				return err
			}
			if _, err := policy.Parse(file, content); err != nil {
				return fault.Wrap(err, errcode.InvalidArgument, "the policy is not valid:\n%v", err)
			}
			opts := replay.Options{Subject: topology.FamilyJob + ".>"}
			if opts.FromTime, err = parseTime("--since", since, time.Now()); err != nil {
				return err
			}
			return a.withNATS(c.Context(), func(ctx context.Context, js jetstream.JetStream) error {
				result, err := a.replayPolicy(ctx, js, string(content), opts)
				if err != nil {
					return err
				}
				return a.printReplay(result)
			})
		},
	}
	c.Flags().StringVar(&file, "policy", "", "file with the policy, - for standard input")
	c.Flags().StringVar(&since, "since", "7d", "jobs since this time, or duration ago")
	_ = c.MarkFlagFilename("policy", "yml", "yaml")
	return c
}

// replayedPolicy is what a policy would have decided.
type replayedPolicy struct {
	// Jobs were decided; Unknown were created without admission.
	Jobs    int           `json:"jobs"`
	Unknown int           `json:"unknown"`
	Changes []replayedJob `json:"changes"`
}

// replayedJob is a job that the policy would have rejected or changed.
type replayedJob struct {
	JobID           int64     `json:"job_id"`
	ProjectID       int64     `json:"project_id"`
	Project         string    `json:"project,omitempty"`
	User            string    `json:"user,omitempty"`
	At              time.Time `json:"at"`
	Would           string    `json:"would"`
	Tags            []string  `json:"tags"`
	AddedTags       []string  `json:"added_tags,omitempty"`
	RemovedTags     []string  `json:"removed_tags,omitempty"`
	AcceptedRunners []int64   `json:"accepted_runner_ids,omitempty"`
	RejectedRunners []int64   `json:"rejected_runner_ids,omitempty"`
	Reason          string    `json:"reason,omitempty"`
}

// What a policy would have done.
const (
	wouldReject = "reject"
	wouldChange = "change"
	wouldFail   = "fail"
)

// replayedRunners are the runners of the stream.
type replayedRunners []events.RunnerChanged

// Groups implements [decide.Surroundings]: the streams for operators have no directory.
func (replayedRunners) Groups(int64) ([]int64, bool) { return nil, false }

// GroupsOfUser implements [decide.Surroundings].
func (replayedRunners) GroupsOfUser(int64) []int64 { return nil }

// Runners implements [decide.Surroundings]. A runner of a group counts for all projects: their groups are not known.
func (r replayedRunners) Runners(projectID int64, protected bool) []policy.Runner {
	var out []policy.Runner
	for _, one := range r {
		if one.Deleted || one.Protected && !protected ||
			one.Type == events.RunnerTypeProjectType && !slices.Contains(one.ProjectIds, int(projectID)) {
			continue
		}
		out = append(out, nats.ForPolicy(one))
	}
	return out
}

func (a *app) replayPolicy(
	ctx context.Context, js jetstream.JetStream, content string, opts replay.Options,
) (replayedPolicy, error) {
	cell := topology.Cell(a.client.Cell)
	runners, err := readRunners(ctx, js, cell)
	if err != nil {
		return replayedPolicy{}, err
	}
	decider := decide.New(decide.Config{Surroundings: runners, Retry: decide.DefaultRetry()})
	by := controller.Controller{
		Settings: controller.Settings{Name: "policy", Policy: content, Mutating: true}.WithDefaults(),
		Owner:    controller.Owner{Level: chain.LevelInstance}, ID: 1, Revision: 1,
	}
	result := replayedPolicy{Changes: []replayedJob{}}
	waited, all := map[int64]bool{}, map[int64]bool{}
	err = replay.Run(ctx, js, cell, opts, func(m stored.Message) error {
		e, err := event.Decode(m.Header, m.Data)
		if err != nil {
			return a.note("%s, sequence %d: not a CloudEvent: %v", m.Subject, m.Sequence, err)
		}
		of, err := nats.DecodeJob(e)
		if err != nil {
			return a.note("%s, sequence %d: %v", m.Subject, m.Sequence, err)
		}
		all[of.JobID] = true
		if of.Preparing == nil {
			return nil
		}
		waited[of.JobID] = true
		result.Jobs++
		if changed, is := replayJob(ctx, decider, by, *of.Preparing); is {
			result.Changes = append(result.Changes, changed)
		}
		return nil
	})
	result.Unknown = len(all) - len(waited)
	return result, err
}

// replayJob decides about a job, and reports whether the policy would have rejected or changed it.
func replayJob(
	ctx context.Context, decider *decide.Decider, by controller.Controller, s decide.Subject,
) (replayedJob, bool) {
	// The deadline was that of the job; the policy decides at once.
	s.Deadline = s.BegunAt.Add(controller.MaxTimeout)
	job, _, _ := decider.Begin(ctx, s, []controller.Controller{by}, s.BegunAt)
	d := job.State.Definition
	out := replayedJob{
		JobID: s.JobID, ProjectID: s.ProjectID, Project: s.Variables["CI_PROJECT_PATH"], User: s.UserLogin, At: s.BegunAt,
		Tags: append([]string{}, d.Tags...), AcceptedRunners: d.AcceptedRunners, RejectedRunners: d.RejectedRunners,
		Reason: job.State.Reasons.String(),
	}
	for _, r := range job.State.Records {
		out.AddedTags, out.RemovedTags = r.Diff.AddedTags, r.Diff.RemovedTags
	}
	switch {
	case job.State.Outcome == chain.Rejected && job.State.Cause == chain.CauseTimeout:
		out.Would = wouldFail
	case job.State.Outcome == chain.Rejected:
		out.Would = wouldReject
	case len(out.AddedTags)+len(out.RemovedTags)+len(d.AcceptedRunners)+len(d.RejectedRunners) > 0:
		out.Would = wouldChange
	default:
		return out, false
	}
	return out, true
}

func readRunners(ctx context.Context, js jetstream.JetStream, cell topology.Cell) (replayedRunners, error) {
	var out replayedRunners
	opts := replay.Options{Subject: topology.FamilyRunner + ".>"}
	err := replay.Run(ctx, js, cell, opts, func(m stored.Message) error {
		var r events.RunnerChanged
		if err := json.Unmarshal(m.Data, &r); err != nil {
			return fmt.Errorf("%s, sequence %d: %w", m.Subject, m.Sequence, err)
		}
		out = append(out, r)
		return nil
	})
	return out, err
}

func (a *app) printReplay(r replayedPolicy) error {
	if a.output != outputTable {
		raw, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return a.printJSON(raw)
	}
	if len(r.Changes) > 0 {
		t := table{header: []string{"JOB", "PROJECT", "USER", "WOULD", "TAGS", "RUNNERS", "REASON"}}
		for _, j := range r.Changes {
			var runners []string
			if len(j.AcceptedRunners) > 0 {
				runners = append(runners, "only "+runnerIDs(j.AcceptedRunners))
			}
			if len(j.RejectedRunners) > 0 {
				runners = append(runners, "not "+runnerIDs(j.RejectedRunners))
			}
			t.rows = append(t.rows, []string{
				strconv.FormatInt(j.JobID, 10), line(j.Project), line(j.User), j.Would, line(strings.Join(j.Tags, ",")),
				line(strings.Join(runners, "; ")), line(j.Reason),
			})
		}
		if err := a.printTable(t); err != nil {
			return err
		}
	}
	if err := a.note("the policy would have rejected or changed %d of %d jobs", len(r.Changes), r.Jobs); err != nil {
		return err
	}
	if r.Unknown == 0 {
		return nil
	}
	return a.note("%d jobs were created without admission, and not decided", r.Unknown)
}
