package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/tools/detection"
	"lockstep.internal/tools/replay"
)

// throughDeploys is the detection that a replay can go through.
const throughDeploys = "deploys"

// replayed is the subject that is replayed: the argument's, or with a detection what that reads.
func replayed(c *cobra.Command, args []string, through string) (string, error) {
	switch {
	case through != "" && through != throughDeploys:
		return "", fault.New(errcode.InvalidArgument, "--through %q must be %s", through, throughDeploys)
	case through != "" && len(args) == 0:
		return topology.FamilyObserved + ".>", nil
	case through != "" && !strings.HasPrefix(args[0], topology.FamilyObserved+"."):
		return "", fault.New(errcode.InvalidArgument, "--through %s reads what watchers observed: SUBJECT %q must begin with %s.", through, args[0], topology.FamilyObserved)
	}
	if err := exactly("SUBJECT")(c, args); through == "" && err != nil {
		return "", err
	}
	return args[0], nil
}

// printDetection prints what detection says over a stretch, and how that differs from what was published.
func (a *app) printDetection(ctx context.Context, opts replay.Options, rules environment.Rules) error {
	conn, err := a.nats(ctx)
	if err != nil {
		return err
	}
	defer leave(conn)
	js, err := conn.JetStream()
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	cell := topology.Cell(a.client.Cell)
	d := detection.New(cell, rules)
	var said []events.DeployFact
	partial, malformed, begun := false, 0, false
	// What came before the stretch is read too: without it nothing would be known of what goes on at its begin.
	from := opts
	opts.FromSequence, opts.FromTime = 0, time.Time{}
	err = d.Replay(ctx, js, cell, opts, func(m *detection.Message, detect func() ([]events.DeployFact, error)) error {
		// What the stream has dropped is not known.
		partial = partial || m.Number == 1 && m.Sequence > 1
		if !begun && m.Sequence >= from.FromSequence && !m.Stored.Before(from.FromTime) {
			begun = true
			d.Begin()
		}
		facts, err := detect()
		if err != nil {
			malformed++
			return a.note("%s, sequence %d: %v", m.Subject, m.Sequence, err)
		}
		if begun {
			said = append(said, facts...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !begun {
		return a.showDetection(nil, malformed)
	}
	published, err := publishedFacts(ctx, js, cell, d)
	if err != nil {
		return err
	}
	return a.showDetection(detection.Compare(said, published, partial), malformed)
}

// publishedFacts are those about what was observed in the stretch.
func publishedFacts(ctx context.Context, js jetstream.JetStream, cell topology.Cell, d *detection.Detector) ([]events.DeployFact, error) {
	var published []events.DeployFact
	all := replay.Options{Subject: topology.FamilyDeploy + ".>"}
	err := replay.Run(ctx, js, cell, all, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		e, err := event.Decode(msg.Headers(), msg.Data())
		if err != nil {
			return fmt.Errorf("%s, sequence %d: %w", msg.Subject(), meta.Sequence.Stream, err)
		}
		fact, err := cdevent.Read(e)
		if err != nil {
			return fmt.Errorf("%s, sequence %d: %w", msg.Subject(), meta.Sequence.Stream, err)
		}
		if d.Covers(&fact) {
			published = append(published, fact)
		}
		return nil
	})
	return published, err
}

func (a *app) showDetection(compared []detection.Compared, malformed int) error {
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
	text := fmt.Sprintf("%d facts are as they were published, %d were published otherwise, %d were not published, %d were published and are not said",
		counts[detection.Same], counts[detection.Changed], counts[detection.Missing], counts[detection.Extra])
	if malformed > 0 {
		text += fmt.Sprintf("; %d messages are malformed", malformed)
	}
	return a.note("%s", text)
}

// detectionLine is a fact and how it stands, for people.
func detectionLine(c *detection.Compared) string {
	f := &c.Fact
	parts := []string{
		c.Verdict.Mark(), f.ObservedAt.Local().Format("2006-01-02 15:04:05.000"), "", f.Workload.Namespace + "/" + f.Workload.Kind + "/" + f.Workload.Name, "", string(f.Fact),
	}
	if f.Rollout != nil {
		parts = append(parts, fmt.Sprintf("revision=%d change=%s", f.Rollout.Revision, f.Rollout.Change))
	}
	if f.Environment != nil {
		parts = append(parts, "run="+f.Environment.Run)
	}
	if f.Counts != nil {
		parts = append(parts, fmt.Sprintf("pods=%d/%d available=%d", f.Counts.Updated, f.Counts.Desired, f.Counts.Available))
	}
	if f.Reason != "" {
		parts = append(parts, "reason="+f.Reason)
	}
	if len(c.Fields) > 0 {
		parts = append(parts, "differs: "+strings.Join(c.Fields, ", "))
	}
	return strings.Join(parts, " ")
}
