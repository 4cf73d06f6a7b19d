package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/payload"
	"lockstep.internal/services/admission/policy"
	"lockstep.internal/tools/trace"
)

func (a *app) admission() *cobra.Command {
	return group("admission", "Decide which jobs may run where: controllers, decisions, policies", a.controllers(),
		a.admissionDecisions(), a.admissionExplain(), a.admissionTest(), a.admissionReplay(), a.admissionInit())
}

func (a *app) admissionTest() *cobra.Command {
	var file, jobFile string
	var exitStatus bool
	c := &cobra.Command{
		Use: "test", Short: "Show what a policy decides about a job", Args: exactly(),
		Long: `Show what a policy decides about a job: whether it may run, why, and with which tags and runners. The command
decides on this machine and changes nothing. docs/admission.md describes policies.

The job is JSON: an object with job, project, user, groups, variables and runners, or the payload that controllers
receive. A payload names no runners and no members of groups.`,
		Example: `  lockstep admission test --policy zones.yaml --job job.json
  lockstep admission test --policy zones.yaml --exit-status --job \
    '{"job": {"id": 7, "tags": ["linux"]}, "user": {"login": "ada"}}'`,
		RunE: func(c *cobra.Command, _ []string) error {
			p, in, err := readAdmissionTest(c, file, jobFile)
			if err != nil {
				return err
			}
			result, err := decideAdmission(c.Context(), p, in)
			if err != nil {
				return err
			}
			if err := a.printAdmission(result); err != nil {
				return err
			}
			if exitStatus && result.Decision != string(chain.Admitted) {
				return fault.New(errcode.FailedPrecondition, "the policy rejects the job")
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&file, "policy", "", "file with the policy, - for standard input")
	f.StringVar(&jobFile, "job", "", "the job in JSON, or a file with it, - for standard input")
	f.BoolVar(&exitStatus, "exit-status", false, "exit status 8 if the policy rejects the job")
	_ = c.MarkFlagFilename("policy", "yml", "yaml")
	_ = c.MarkFlagFilename("job", "json")
	return c
}

func readAdmissionTest(c *cobra.Command, file, job string) (*policy.Policy, policy.Input, error) {
	switch {
	case file == "" || job == "":
		return nil, policy.Input{}, usage(c, "want --policy and --job")
	case file == stdinFlag && job == stdinFlag:
		return nil, policy.Input{}, usage(c, "standard input cannot be both the policy and the job")
	}
	content, err := readInput(file, "policy", policy.MaxBytes, c.InOrStdin())
	if err != nil {
		return nil, policy.Input{}, err
	}
	if file == stdinFlag {
		file = stdinName
	}
	p, err := policy.Parse(file, content)
	if err != nil {
		return nil, policy.Input{}, fault.Wrap(err, errcode.InvalidArgument, "the policy is not valid:\n%v", err)
	}
	document := []byte(job)
	if !strings.HasPrefix(job, "{") && !strings.HasPrefix(job, "[") {
		if document, err = readInput(job, "job", payload.MaxBytes, c.InOrStdin()); err != nil {
			return nil, policy.Input{}, err
		}
	}
	in, err := policy.DecodeInput(document)
	if err != nil {
		return nil, policy.Input{}, fault.Wrap(err, errcode.InvalidArgument, "%v", err)
	}
	return p, in, nil
}

// admissionResult is what a policy decides about a job.
type admissionResult struct {
	Decision    string   `json:"decision"`
	Cause       string   `json:"cause,omitempty"`
	Reason      string   `json:"reason,omitempty"`
	Tags        []string `json:"tags"`
	AddedTags   []string `json:"added_tags"`
	RemovedTags []string `json:"removed_tags"`
	// Runners are those of the input.
	Runners []admissionRunner `json:"runners"`
	// Answer is what a controller would answer.
	Answer json.RawMessage `json:"answer"`
}

type admissionRunner struct {
	ID          int64  `json:"id"`
	Description string `json:"description,omitempty"`
	Takes       bool   `json:"takes_it"`
	Because     string `json:"because,omitempty"`
}

// decideAdmission decides as the chain of a single policy does.
func decideAdmission(ctx context.Context, p *policy.Policy, in policy.Input) (admissionResult, error) {
	answer, err := p.Evaluate(ctx, in)
	if err != nil {
		return admissionResult{}, fault.Wrap(err, errcode.InvalidArgument,
			"%v; a controller with this policy would fail, and its failure policy would decide", err)
	}
	job := chain.Job{ID: in.Job.ID, Tags: in.Job.Tags}
	for _, r := range in.Runners {
		job.Runners = append(job.Runners, chain.Runner{ID: r.ID, Tags: r.Tags, RunUntagged: r.RunUntagged})
	}
	question := chain.Question{ControllerID: 1, Attempt: 1}
	controller := chain.Controller{ID: question.ControllerID, Mutating: true, Mode: chain.Enforced}
	state, _ := chain.Begin(job, []chain.Controller{controller}, time.Time{})
	state, step := chain.Advance(state, chain.Answered{Question: question, Answer: answer}, time.Time{})
	result := admissionResult{
		Decision: string(state.Outcome), Cause: string(step.Cause),
		Reason: step.Reasons.String(), Tags: append([]string{}, step.Definition.Tags...),
		AddedTags: []string{}, RemovedTags: []string{}, Runners: []admissionRunner{}, Answer: payload.EncodeAnswer(answer),
	}
	for _, record := range state.Records {
		result.AddedTags = append(result.AddedTags, record.Diff.AddedTags...)
		result.RemovedTags = append(result.RemovedTags, record.Diff.RemovedTags...)
	}
	for i, r := range in.Runners {
		because := step.Definition.Obstacle(job.Runners[i])
		if state.Outcome != chain.Admitted {
			because = "the job is rejected"
		}
		result.Runners = append(result.Runners,
			admissionRunner{ID: r.ID, Description: r.Description, Takes: because == "", Because: because})
	}
	return result, nil
}

func (a *app) printAdmission(r admissionResult) error {
	if a.output != outputTable {
		raw, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return a.printJSON(raw)
	}
	decision := r.Decision
	if r.Cause != "" {
		decision += " (" + r.Cause + ")"
	}
	if err := a.printTable(table{
		header: []string{"DECISION", decision},
		rows: [][]string{
			{"REASON", line(r.Reason)},
			{"TAGS", line(strings.Join(r.Tags, ", "))},
			{"ADDED", line(strings.Join(r.AddedTags, ", "))},
			{"REMOVED", line(strings.Join(r.RemovedTags, ", "))},
		},
	}); err != nil || len(r.Runners) == 0 {
		return err
	}
	t := table{header: []string{"RUNNER", "DESCRIPTION", "TAKES IT", "BECAUSE"}}
	for _, one := range r.Runners {
		takes := "no"
		if one.Takes {
			takes = "yes"
		}
		t.rows = append(t.rows, []string{
			strconv.FormatInt(one.ID, 10), line(one.Description), takes, line(one.Because),
		})
	}
	if err := a.write("\n"); err != nil {
		return err
	}
	return a.printTable(t)
}

// line returns text in one line; a dash for none.
func line(text string) string {
	if text == "" {
		return "-"
	}
	return trace.Line(text)
}
