package cli

import (
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/tools/trace"
)

const outcomePrefix = "OUTCOME_"

func (a *app) admissionDecisions() *cobra.Command {
	var project, outcome string
	var limit int
	c := &cobra.Command{
		Use: "decisions", Short: "List what admission decided about the jobs of a project, the newest first", Args: exactly(),
		Example: "  lockstep admission decisions --project shop/web --outcome denied",
		RunE: func(c *cobra.Command, _ []string) error {
			wanted, err := oneEnum[admissionv1.Outcome]("--outcome", outcome, outcomePrefix, admissionv1.Outcome_value)
			if err != nil {
				return err
			}
			api, err := a.admissionAPI()
			if err != nil {
				return err
			}
			names, err := a.namesOfAPI(c.Context())
			if err != nil {
				return err
			}
			id, err := names.projectOrOnly(project)
			if err != nil {
				return err
			}
			found, token, err := readPages(limit, func(size int32, token string) ([]*admissionv1.Decision, string, error) {
				page, err := api.Decisions.ListDecisions(c.Context(), connect.NewRequest(&admissionv1.ListDecisionsRequest{
					ProjectId: id, Outcome: wanted, PageSize: size, PageToken: token,
				}))
				if err != nil {
					return nil, "", err
				}
				return page.Msg.GetDecisions(), page.Msg.GetNextPageToken(), nil
			})
			if err != nil {
				return err
			}
			return a.print(&admissionv1.ListDecisionsResponse{Decisions: found, NextPageToken: token}, decisionTable(found))
		},
	}
	a.projectFlag(c, &project, "project", "project of the jobs; default: the only one that you can see")
	enumValueFlag(c, &outcome, "outcome", "only this outcome", enumWords(outcomePrefix, admissionv1.Outcome_value))
	const defaultLimit = 50
	c.Flags().IntVar(&limit, "limit", defaultLimit, "number of decisions; 0 for all")
	return c
}

func decisionTable(list []*admissionv1.Decision) table {
	t := table{header: []string{"JOB", "NAME", "OUTCOME", "TAGS", "BEGUN", "REASON"}}
	for _, d := range list {
		t.rows = append(t.rows, []string{
			strconv.FormatInt(d.GetJobId(), 10), line(d.GetJobName()), enumWord(d.GetOutcome().String(), outcomePrefix),
			line(strings.Join(d.GetTags(), ",")), age(d.GetBegunAt()), line(strings.Join(d.GetReasons(), "; ")),
		})
	}
	return t
}

func (a *app) admissionExplain() *cobra.Command {
	return &cobra.Command{
		Use: "explain JOB", Short: "Show why a job was admitted or rejected, or for what it waits", Args: exactly("JOB"),
		Long: `Show how admission stands or has ended for a job: what each controller decided, when and why, and each request
to a web server with its HTTP status or error. JOB is the id of the job.`,
		Example: "  lockstep admission explain 9001", ValidArgsFunction: a.completeDecidedJobs,
		RunE: func(c *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || id <= 0 {
				return fault.New(errcode.InvalidArgument, "JOB %q is not the id of a job", args[0])
			}
			api, err := a.admissionAPI()
			if err != nil {
				return err
			}
			found, err := api.Decisions.ExplainJob(c.Context(),
				connect.NewRequest(&admissionv1.ExplainJobRequest{JobId: id}))
			if err != nil {
				return err
			}
			d := found.Msg.GetDecision()
			if err := a.print(found.Msg, decisionFields(d)); err != nil || a.output != outputTable ||
				len(d.GetPrerequisites()) == 0 {
				return err
			}
			if err := a.write("\n"); err != nil {
				return err
			}
			err = a.printTable(decisionPrerequisites(d.GetPrerequisites()))
			if err != nil || len(found.Msg.GetAttempts()) == 0 {
				return err
			}
			if err := a.write("\n"); err != nil {
				return err
			}
			return a.printTable(decisionAttempts(found.Msg))
		},
	}
}

func decisionFields(d *admissionv1.Decision) table {
	var t fields
	t.add("job", strconv.FormatInt(d.GetJobId(), 10)+" "+trace.Line(d.GetJobName()))
	t.add("outcome", enumWord(d.GetOutcome().String(), outcomePrefix))
	t.add("reason", trace.Line(strings.Join(d.GetReasons(), "; ")))
	t.add("original tags", trace.Line(strings.Join(d.GetOriginalTags(), ", ")))
	t.add("tags", line(strings.Join(d.GetTags(), ", ")))
	t.add("accepted runners", runnerIDs(d.GetAcceptedRunnerIds()))
	t.add("rejected runners", runnerIDs(d.GetRejectedRunnerIds()))
	t.add("begun", clock(d.GetBegunAt()))
	t.add("ended", clock(d.GetEndedAt()))
	if d.GetEndedAt() == nil {
		t.add("deadline", clock(d.GetDeadline()))
	}
	return t.table()
}

func runnerIDs(ids []int64) string {
	return joined(ids, func(id int64) string { return strconv.FormatInt(id, 10) })
}

// decisionAttempts lists the requests, those to one controller together.
func decisionAttempts(explained *admissionv1.ExplainJobResponse) table {
	t := table{header: []string{"REQUEST TO", "ATTEMPT", "SENT", "DURATION", "STATUS", "RESULT"}}
	for _, p := range explained.GetDecision().GetPrerequisites() {
		for _, sent := range explained.GetAttempts() {
			if sent.GetControllerId() != p.GetControllerId() {
				continue
			}
			duration, status := "", ""
			if sent.GetEndedAt() != nil {
				duration = sent.GetEndedAt().AsTime().Sub(sent.GetSentAt().AsTime()).Round(time.Millisecond).String()
			}
			if sent.GetStatus() != 0 {
				status = strconv.Itoa(int(sent.GetStatus()))
			}
			t.rows = append(t.rows, []string{
				trace.Line(p.GetName()), strconv.Itoa(int(sent.GetAttempt())), clock(sent.GetSentAt()), duration, status,
				line(sent.GetResult()),
			})
		}
	}
	return t
}

func decisionPrerequisites(list []*admissionv1.Prerequisite) table {
	t := table{header: []string{"CONTROLLER", "LEVEL", "STATE", "ATTEMPT", "ADDED", "REMOVED", "REASON"}}
	for _, p := range list {
		state := p.GetState()
		if p.GetDryRun() {
			state += " (dry run)"
		}
		t.rows = append(t.rows, []string{
			trace.Line(p.GetName()), p.GetLevel(), state, strconv.Itoa(int(p.GetAttempt())),
			line(strings.Join(p.GetAddedTags(), ",")), line(strings.Join(p.GetRemovedTags(), ",")), line(p.GetReason()),
		})
	}
	return t
}
