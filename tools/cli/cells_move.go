package cli

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

const (
	movePhasePrefix = "MOVE_PHASE_"
	// moveTokenLifetime is how long the token of this cell is valid that a move gets.
	moveTokenLifetime = 24 * time.Hour
	moveInterval      = 500 * time.Millisecond
	// restartTimeout is how long a service may take to restart.
	restartTimeout = 30 * time.Second
)

// moveOptions are the flags of `cells move`.
type moveOptions struct {
	to, url, tokenFile                 string
	yes, report, cancel, cancelArrival bool
	// leaveControllers: the move goes on although controllers of admission stay.
	leaveControllers bool
}

func (a *app) cellMove(seedFile *string) *cobra.Command {
	var o moveOptions
	c := &cobra.Command{
		Use: "move ORGANIZATION", Short: "Move an organization with its pipelines and runners to another cell",
		Args: exactly("ORGANIZATION"),
		Long: `Move an organization from the cell of this configuration to another one. The command prints what the move
changes, asks, starts it and shows its progress. The move goes on without the command: interrupt it, and run it again to
see the progress, or to give the move new tokens.

The token for the other cell is that of an administrator there, with the scope admin. This cell keeps it sealed until
the end. ORGANIZATION is an id or a name. See docs/cells.md.

Admission controllers of its projects and groups do not move. While there are some, the command refuses to start the
move: create controllers in the other cell first, and set --leave-controllers.

With --cancel-arrival, in the configuration of the other cell, it removes there what has arrived of an organization
if the cell that it comes from is lost. It is refused once the organization is open there.`,
		Example: `  lockstep cells move acme --to eu-2 --to-token-file eu-2.token --report
  lockstep cells move acme --to eu-2 --to-token-file eu-2.token
  lockstep cells move acme --cancel
  lockstep cells move acme --cancel-arrival`,
		RunE: func(c *cobra.Command, args []string) error { return a.runMove(c, *seedFile, args[0], o) },
	}
	f := c.Flags()
	f.StringVar(&o.to, "to", "", "name of the other cell")
	f.StringVar(&o.url, "to-url", "", "address of the runners service of the other cell; default: that in the cell map")
	f.StringVar(&o.tokenFile, "to-token-file", "",
		"file with the personal access token of an administrator of the other cell")
	f.BoolVar(&o.report, "report", false, "print what the move would change, and change nothing")
	f.BoolVar(&o.leaveControllers, "leave-controllers", false,
		"start the move although admission controllers of the organization stay here")
	f.BoolVar(&o.cancel, "cancel", false, "cancel a move that is still copying")
	f.BoolVar(&o.cancelArrival, "cancel-arrival", false,
		"cancel a move to this cell whose source does not answer any more")
	c.MarkFlagsMutuallyExclusive("cancel", "cancel-arrival", "report")
	yesFlag(c, &o.yes)
	return c
}

func (a *app) runMove(c *cobra.Command, seedFile, organization string, o moveOptions) error {
	ctx := c.Context()
	api, names, err := a.runnersAndNames(ctx)
	if err != nil {
		return err
	}
	id, err := names.organizationID(organization)
	if err != nil {
		return err
	}
	if o.cancelArrival {
		return a.cancelArrival(c, api, organization, id, o.yes)
	}
	if o.cancel {
		_, err := api.Moves.CancelMove(ctx, connect.NewRequest(&runnersv1.CancelMoveRequest{OrganizationId: id}))
		if err != nil {
			return err
		}
		return a.followMove(ctx, api, id, true)
	}
	request, err := a.moveRequest(ctx, seedFile, id, o)
	if err != nil {
		return err
	}
	own, err := a.token()
	if err != nil {
		return err
	}
	var report *connect.Response[runnersv1.ReportMoveResponse]
	err = a.untilAvailable(ctx, func() (err error) {
		report, err = api.Moves.ReportMove(ctx, connect.NewRequest(&runnersv1.ReportMoveRequest{
			OrganizationId: id, ToCell: request.GetToCell(), ToUrl: request.GetToUrl(), ToToken: request.GetToToken(),
			Token: own,
		}))
		return err
	})
	if err != nil {
		return err
	}
	if err := a.printMoveReport(report.Msg, o); err != nil {
		return err
	}
	if err := a.checkControllersOfMove(ctx, names, id, o); err != nil || o.report {
		return err
	}
	if agents, workspaces := report.Msg.GetAgents(), report.Msg.GetWorkspaces(); agents+workspaces > 0 {
		return fault.New(errcode.FailedPrecondition, "organization %s has %d agents and %d workspaces, which cannot move: "+
			"terminate the workspaces and revoke the agents first", organization, agents, workspaces)
	}
	if !o.yes {
		what := fmt.Sprintf("Organization %s moves to cell %s.", organization, o.to)
		if err := a.confirm(c, what, organization); err != nil {
			return err
		}
	}
	if err := a.startMove(ctx, api, request); err != nil && !a.hasMoved(ctx, api, request, err) {
		return err
	}
	return a.followMove(ctx, api, id, false)
}

// hasMoved reports whether a move did not start because it has ended: the command was repeated.
func (a *app) hasMoved(
	ctx context.Context, api *client.Runners, request *runnersv1.StartMoveRequest, refusal error,
) bool {
	if !fault.Is(refusal, errcode.OrganizationMoving) {
		return false
	}
	response, err := api.Moves.GetMove(ctx,
		connect.NewRequest(&runnersv1.GetMoveRequest{OrganizationId: request.GetOrganizationId()}))
	return err == nil && response.Msg.GetMove().GetPhase() == runnersv1.MovePhase_MOVE_PHASE_DONE &&
		response.Msg.GetMove().GetCell() == request.GetToCell()
}

// cancelArrival cancels a move to this cell.
func (a *app) cancelArrival(
	c *cobra.Command, api *client.Runners, organization string, id int64, confirmed bool,
) error {
	token, err := a.token()
	if err != nil {
		return err
	}
	if !confirmed {
		what := fmt.Sprintf("What has arrived of organization %s is removed from this cell. If its own cell answers again, "+
			"it continues there.", organization)
		if err := a.confirm(c, what, organization); err != nil {
			return err
		}
	}
	response, err := api.Moves.CancelArrival(c.Context(),
		connect.NewRequest(&runnersv1.CancelArrivalRequest{OrganizationId: id, Token: token}))
	if err != nil {
		return err
	}
	return a.note("canceled the move of organization %s from cell %s", organization, response.Msg.GetMove().GetCell())
}

// moveRequest returns the request without the token for this cell.
func (a *app) moveRequest(
	ctx context.Context, seedFile string, id int64, o moveOptions,
) (*runnersv1.StartMoveRequest, error) {
	if err := topology.ValidateCell(o.to); err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "--to: %v", err)
	}
	if o.tokenFile == "" {
		return nil, fault.New(errcode.InvalidArgument, "--to-token-file is missing: an administrator of cell %s makes the "+
			"token with `lockstep token create move --scope admin --expires-in 1d`", o.to)
	}
	token, err := config.SecretFile(o.tokenFile).Read()
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "--to-token-file: %v", err)
	}
	request := &runnersv1.StartMoveRequest{OrganizationId: id, ToCell: o.to, ToUrl: o.url, ToToken: token}
	if o.url != "" {
		return request, nil
	}
	err = a.withCells(ctx, seedFile, func(ctx context.Context, js jetstream.JetStream) error {
		m, err := cellmap.Load(ctx, js, slog.New(slog.DiscardHandler))
		if err != nil {
			return fmt.Errorf("read the cell map: %w", err)
		}
		cell, found := m.Cell(topology.Cell(o.to))
		if !found {
			return fault.New(errcode.NotFound,
				"cell %s is not in the cell map: see `lockstep cells list`, or set --to-url", o.to)
		}
		request.ToUrl = cell.URL
		return nil
	})
	return request, err
}

// startMove makes a token for this cell and starts the move.
func (a *app) startMove(ctx context.Context, runners *client.Runners, request *runnersv1.StartMoveRequest) error {
	api, err := a.api()
	if err != nil {
		return err
	}
	created, err := api.Tokens.CreateToken(ctx, connect.NewRequest(&statev1.CreateTokenRequest{
		Name:      "move of organization " + strconv.FormatInt(request.GetOrganizationId(), 10),
		Scope:     statev1.TokenScope_TOKEN_SCOPE_ADMIN,
		ExpiresAt: timestamppb.New(time.Now().Add(moveTokenLifetime)),
	}))
	if err != nil {
		return err
	}
	request.Token = created.Msg.GetValue()
	err = a.untilAvailable(ctx, func() error {
		_, err := runners.Moves.StartMove(ctx, connect.NewRequest(request))
		return err
	})
	if err != nil && !fault.Is(err, errcode.Unavailable) {
		// The move did not start, so nobody needs the token.
		revoke := &statev1.RevokeTokenRequest{Id: created.Msg.GetToken().GetId()}
		if _, revoked := api.Tokens.RevokeToken(ctx, connect.NewRequest(revoke)); revoked != nil {
			return fmt.Errorf("%w; token %d was not revoked: %w", err, revoke.GetId(), revoked)
		}
	}
	return err
}

// untilAvailable repeats a call while a service restarts, for half a minute at most.
func (a *app) untilAvailable(ctx context.Context, call func() error) error {
	deadline, noted := time.Now().Add(restartTimeout), false
	for {
		err := call()
		if !fault.Is(err, errcode.Unavailable) || time.Now().After(deadline) {
			return err
		}
		if !noted {
			noted = true
			if err := a.note("trying again: %v", err); err != nil {
				return err
			}
		}
		if retry.Sleep(ctx, moveInterval) != nil {
			return err
		}
	}
}

// printMoveReport prints what a move changes.
func (a *app) printMoveReport(r *runnersv1.ReportMoveResponse, o moveOptions) error {
	if a.output != outputTable {
		return a.print(r, table{})
	}
	lines := []string{
		fmt.Sprintf("%d pipelines, %d runners and %d artifacts (%.1f MB) move to cell %s.", r.GetPipelines(), r.GetRunners(),
			r.GetArtifacts(), float64(r.GetArtifactBytes())/1e6, o.to),
		fmt.Sprintf("%d jobs wait. They are picked there, and not here from now on.", r.GetWaitingJobs()),
		fmt.Sprintf("%d jobs run. They end here, and their pipelines follow them.", r.GetRunningJobs()),
	}
	if r.GetAgents()+r.GetWorkspaces() > 0 {
		lines = append(lines, fmt.Sprintf("%d agents and %d workspaces cannot move: terminate the workspaces and revoke the "+
			"agents first.", r.GetAgents(), r.GetWorkspaces()))
	}
	if ids := r.GetRunnerIdsStaying(); len(ids) > 0 {
		lines = append(lines, fmt.Sprintf("Runners of the instance that take its jobs now stay here: %s.", joinIDs(ids)))
	}
	if n := r.GetUnserved(); n > 0 {
		lines = append(lines, fmt.Sprintf("No runner there takes %d of the jobs that wait:", n))
		for _, j := range r.GetUnservedJobs() {
			lines = append(lines, fmt.Sprintf("  job %d %q, tags: %s", j.GetId(), j.GetName(), strings.Join(j.GetTags(), ", ")))
		}
	}
	return a.write(strings.Join(lines, "\n") + "\n")
}

// checkControllersOfMove prints which admission controllers do not move with an organization. It refuses the move if
// there are some, unless that is expected.
func (a *app) checkControllersOfMove(ctx context.Context, names *names, organization int64, o moveOptions) error {
	if a.client.AdmissionServer == "" {
		return a.note("admission controllers do not move: if this cell has an admission service, set --admission-server " +
			"to see those of the organization")
	}
	api, err := a.admissionAPI()
	if err != nil {
		return err
	}
	found, err := api.Controllers.ListOrganizationControllers(ctx,
		connect.NewRequest(&admissionv1.ListOrganizationControllersRequest{OrganizationId: organization}))
	if err != nil || found.Msg.GetTotal() == 0 {
		return err
	}
	for _, k := range found.Msg.GetControllers() {
		err := a.note("admission controller %d %q of %s does not move", k.GetId(), k.GetSettings().GetName(),
			controllerOf(names, k))
		if err != nil {
			return err
		}
	}
	if o.leaveControllers || o.report {
		return nil
	}
	return fault.New(errcode.FailedPrecondition, "%d admission controllers of the organization do not move, and its jobs "+
		"would run in cell %s without them: create controllers there as docs/cells.md describes, then set "+
		"--leave-controllers",
		found.Msg.GetTotal(), o.to)
}

// followMove shows the progress of a move to its end. A canceled move is an error, unless that was the wish.
func (a *app) followMove(ctx context.Context, api *client.Runners, organization int64, canceling bool) error {
	shown := ""
	for {
		response, err := api.Moves.GetMove(ctx, connect.NewRequest(&runnersv1.GetMoveRequest{OrganizationId: organization}))
		var m *runnersv1.Move
		if err == nil {
			m = response.Msg.GetMove()
		}
		switch {
		case ctx.Err() != nil:
			return a.note("interrupted: the move goes on; run the command again to see it, or `lockstep cells moves`")
		case err != nil && !fault.Is(err, errcode.Unavailable):
			return err
		case err == nil:
			if text := moveProgress(m); text != shown {
				shown = text
				if err := a.note("%s", text); err != nil {
					return err
				}
			}
		}
		switch m.GetPhase() { //nolint:exhaustive // the others go on
		case runnersv1.MovePhase_MOVE_PHASE_DONE:
			return nil
		case runnersv1.MovePhase_MOVE_PHASE_CANCELED:
			if canceling {
				return nil
			}
			return fault.New(errcode.FailedPrecondition, "the move was canceled: %s", m.GetMessage())
		}
		_ = retry.Sleep(ctx, moveInterval) // the next turn sees the end of ctx
	}
}

// moveProgress is a line about a move.
func moveProgress(m *runnersv1.Move) string {
	text := enumWord(m.GetPhase().String(), movePhasePrefix)
	if n := m.GetPipelinesLeft(); n > 0 && m.GetPhase() == runnersv1.MovePhase_MOVE_PHASE_HANDING_OVER {
		text += fmt.Sprintf(": %d pipelines are left, %d of them with running jobs", n, m.GetPipelinesRunning())
	}
	if m.GetMessage() != "" {
		text += ": " + m.GetMessage()
	}
	return text
}

func (a *app) cellMoves() *cobra.Command {
	return &cobra.Command{
		Use: "moves", Short: "List the moves of organizations from this cell and to it", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.runnersAPI()
			if err != nil {
				return err
			}
			response, err := api.Moves.ListMoves(c.Context(), connect.NewRequest(&runnersv1.ListMovesRequest{}))
			if err != nil {
				return err
			}
			t := table{header: []string{"ORGANIZATION", "DIRECTION", "CELL", "PHASE", "AGE", "MESSAGE"}}
			for _, m := range response.Msg.GetMoves() {
				direction := "to"
				if m.GetArrival() {
					direction = "from"
				}
				t.rows = append(t.rows, []string{
					strconv.FormatInt(m.GetOrganizationId(), 10), direction, m.GetCell(),
					enumWord(m.GetPhase().String(), movePhasePrefix), age(m.GetStartedAt()), m.GetMessage(),
				})
			}
			return a.print(response.Msg, t)
		},
	}
}
