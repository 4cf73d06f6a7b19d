package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/tools/detection"
	"lockstep.internal/tools/replay"
)

// throughDeploys is the value of --through for the detection of rollouts.
const throughDeploys = "deploys"

// replaySubject returns the subject of the replay: the argument, or that of the detection.
func replaySubject(c *cobra.Command, args []string, through string) (string, error) {
	switch {
	case through != "" && through != throughDeploys:
		return "", fault.New(errcode.InvalidArgument, "--through %q must be %s", through, throughDeploys)
	case through != "" && len(args) == 0:
		return topology.FamilyObserved + ".>", nil
	case through != "" && !strings.HasPrefix(args[0], topology.FamilyObserved+"."):
		return "", fault.New(errcode.InvalidArgument,
			"--through %s reads observations: SUBJECT %q must begin with %s.", through, args[0], topology.FamilyObserved)
	}
	if err := exactly("SUBJECT")(c, args); through == "" && err != nil {
		return "", err
	}
	return args[0], nil
}

// printDetection detects rollouts in a range of observations and prints the facts, compared with the
// published ones.
func (a *app) printDetection(ctx context.Context, opts replay.Options, rules environment.Rules) error {
	return a.withNATS(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return a.detect(ctx, js, opts, rules)
	})
}

func (a *app) detect(
	ctx context.Context, js jetstream.JetStream, opts replay.Options, rules environment.Rules,
) error {
	cell := topology.Cell(a.client.Cell)
	d := detection.New(cell, rules)
	if err := a.loadClaims(ctx, d, js, cell); err != nil {
		return err
	}
	opts.Also = decisions(opts.Subject)
	counts := rejections{foreign: map[foreignReport]int{}}
	replayed, err := d.Replay(ctx, js, cell, opts, func(r detection.Rejection) error {
		if counts.add(r) {
			return nil
		}
		return a.note("%s, sequence %d: %v", r.Subject, r.Sequence, r.Err)
	})
	if err != nil {
		return err
	}
	published, err := publishedFacts(ctx, js, cell, d)
	if err != nil {
		return err
	}
	return a.showDetection(detection.Compare(replayed.Facts, published, replayed.Partial), counts)
}

// rejections counts the messages that the service dead-letters.
type rejections struct {
	malformed int
	foreign   map[foreignReport]int
}

// foreignReport is an agent that may not report a cluster. An unknown agent has no cluster.
type foreignReport struct {
	agent, project, owner int64
	cluster               string
}

// add counts a rejection; of the messages before the range only the malformed ones. It returns false for a malformed
// message.
func (c *rejections) add(r detection.Rejection) bool {
	foreign, isForeign := errors.AsType[*ownership.ForeignError](r.Err)
	unknown, isUnknown := errors.AsType[ingest.UnknownAgentError](r.Err)
	report := foreignReport{agent: unknown.AgentID}
	if isForeign {
		claim := foreign.Claim
		report = foreignReport{foreign.AgentID, foreign.ProjectID, claim.ProjectID, claim.ClusterUID}
	}
	switch {
	case !isForeign && !isUnknown:
		c.malformed++
		return false
	case !r.BeforeRange:
		c.foreign[report]++
	}
	return true
}

func (c *rejections) lines() []string {
	lines := make([]string, 0, len(c.foreign))
	for r, count := range c.foreign {
		if r.cluster == "" {
			lines = append(lines, fmt.Sprintf("agent %d is unknown: rejected %d messages", r.agent, count))
			continue
		}
		lines = append(lines, fmt.Sprintf("agent %d of project %d reported cluster %q of project %d: rejected %d messages",
			r.agent, r.project, r.cluster, r.owner, count))
	}
	slices.Sort(lines)
	return lines
}

// loadClaims sets the projects of clusters: those of the service, or else those that follow from the observations and
// the directory.
func (a *app) loadClaims(ctx context.Context, d *detection.Detector, js jetstream.JetStream, cell topology.Cell) error {
	api, err := a.deploysAPI()
	if err == nil {
		var clusters *connect.Response[deploysv1.ListClustersResponse]
		clusters, err = api.Clusters.ListClusters(ctx, connect.NewRequest(&deploysv1.ListClustersRequest{}))
		if err == nil {
			d.UseDecisions(decidedClaims(clusters.Msg))
			return nil
		}
	}
	if ctx.Err() != nil {
		return fault.From(ctx.Err())
	}
	const unavailable = "cannot ask the deploys service for the projects of clusters, using the streams: %s"
	if err := a.note(unavailable, fault.From(err).Message); err != nil {
		return err
	}
	d.ResolveProjects(agentProjects(js, cell))
	return nil
}

// agentProjects returns a function that reads the project of an agent from the directory, once.
func agentProjects(
	js jetstream.JetStream, cell topology.Cell,
) func(ctx context.Context, agentID int64) (int64, error) {
	reader, projects := stored.Reader{JetStream: js, Stream: topology.StreamDirectory}, map[int64]int64{}
	return func(ctx context.Context, agentID int64) (int64, error) {
		if project, known := projects[agentID]; known {
			return project, nil
		}
		m, err := reader.Last(ctx, cell.Directory("agent", strconv.FormatInt(agentID, 10)))
		if err != nil {
			return 0, fmt.Errorf("read agent %d of the directory: %w", agentID, err)
		}
		if m == nil {
			return 0, ingest.UnknownAgentError{AgentID: agentID}
		}
		e, err := event.Decode(m.Header, m.Data)
		if err != nil {
			return 0, fmt.Errorf("%s, sequence %d: %w", m.Subject, m.Sequence, err)
		}
		var agent events.DirectoryAgent
		if err := e.DataAs(&agent); err != nil {
			return 0, fmt.Errorf("%s, sequence %d: %w", m.Subject, m.Sequence, err)
		}
		projects[agentID] = int64(agent.ProjectID)
		return projects[agentID], nil
	}
}

// decidedClaims converts the response of the service.
func decidedClaims(r *deploysv1.ListClustersResponse) (
	restored bool, reporters []ownership.Reporter, claims []ownership.Claim,
) {
	for _, reporter := range r.GetReporters() {
		reporters = append(reporters, ownership.Reporter{
			AgentID:   reporter.GetAgentId(),
			ProjectID: reporter.GetProjectId(),
			Since:     reporter.GetSinceSequence(),
		})
	}
	for _, c := range r.GetClusters() {
		for _, claim := range c.GetClaims() {
			claims = append(claims, ownership.Claim{
				ClusterUID: c.GetClusterUid(),
				Since:      claim.GetSinceSequence(),
				ProjectID:  claim.GetProjectId(),
				AgentID:    claim.GetAgentId(),
				UserID:     claim.GetUserId(),
				Reason:     claim.GetReason(),
				At:         claim.GetClaimedAt().AsTime(),
			})
		}
	}
	return r.GetStreamRestored(), reporters, claims
}

// decisions returns the subjects of decisions about clusters when the subject is that of one agent.
func decisions(subject string) []string {
	agent, _, _ := strings.Cut(strings.TrimPrefix(subject, topology.FamilyObserved+"."), ".")
	if _, err := strconv.ParseInt(agent, 10, 64); err != nil {
		return nil // included in the subject
	}
	return []string{topology.FamilyObserved + "." + topology.TokenCluster + ".>"}
}

// publishedFacts returns the published facts about the range.
func publishedFacts(
	ctx context.Context, js jetstream.JetStream, cell topology.Cell, d *detection.Detector,
) ([]events.DeployFact, error) {
	var published []events.DeployFact
	all := replay.Options{Subject: topology.FamilyDeploy + ".>"}
	err := replay.Run(ctx, js, cell, all, func(m stored.Message) error {
		e, err := event.Decode(m.Header, m.Data)
		if err != nil {
			return fmt.Errorf("%s, sequence %d: %w", m.Subject, m.Sequence, err)
		}
		fact, err := cdevent.Read(e)
		if err != nil {
			return fmt.Errorf("%s, sequence %d: %w", m.Subject, m.Sequence, err)
		}
		if d.Covers(&fact) {
			published = append(published, fact)
		}
		return nil
	})
	return published, err
}

func (a *app) showDetection(compared []detection.Compared, rejected rejections) error {
	counts := map[detection.Verdict]int{}
	for i := range compared {
		c := &compared[i]
		counts[c.Verdict]++
		line := detectionLine(c)
		if a.output != outputTable {
			raw, err := json.Marshal(c)
			if err != nil {
				return fmt.Errorf("print: %w", err)
			}
			line = string(raw)
		}
		if err := a.write(line + "\n"); err != nil {
			return err
		}
	}
	const summary = "facts: %d the same as published, %d different, %d not published, %d published but not detected"
	text := fmt.Sprintf(summary,
		counts[detection.Same], counts[detection.Changed], counts[detection.Missing], counts[detection.Extra])
	if rejected.malformed > 0 {
		text += fmt.Sprintf("; malformed messages: %d", rejected.malformed)
	}
	for _, line := range rejected.lines() {
		if err := a.note("%s", line); err != nil {
			return err
		}
	}
	return a.note("%s", text)
}

// detectionLine is the text output of a fact.
func detectionLine(compared *detection.Compared) string {
	f := &compared.Fact
	parts := []string{
		compared.Verdict.Mark(),
		f.ObservedAt.Local().Format("2006-01-02 15:04:05.000"),
		"",
		f.Workload.Namespace + "/" + f.Workload.Kind + "/" + f.Workload.Name,
		"",
		string(f.Fact),
	}
	if f.Rollout != nil {
		parts = append(parts, fmt.Sprintf("revision=%d change=%s", f.Rollout.Revision, f.Rollout.Change))
	}
	if f.Environment != nil {
		parts = append(parts, "run="+f.Environment.Run)
	}
	if f.Counts != nil {
		c := f.Counts
		parts = append(parts, fmt.Sprintf("pods=%d/%d available=%d", c.Updated, c.Desired, c.Available))
	}
	if f.Reason != "" {
		parts = append(parts, "reason="+f.Reason)
	}
	if len(compared.Fields) > 0 {
		parts = append(parts, "differs: "+strings.Join(compared.Fields, ", "))
	}
	return strings.Join(parts, " ")
}
