package cli

import (
	"context"
	"os/exec"
	"runtime"
	"strings"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

// gateway returns a client of the cell's gateway, which the caller closes.
func (a *app) gateway(ctx context.Context, api *client.API) (*client.Gateway, error) {
	response, err := api.Gateway.GetGateway(ctx, connect.NewRequest(&statev1.GetGatewayRequest{}))
	if err != nil {
		return nil, err
	}
	if response.Msg.GetUrl() == "" {
		return nil, fault.New(errcode.FailedPrecondition, "this system has no gateway, so nobody can enter its workspaces: "+
			"an operator runs one and sets gateway.url of the state service")
	}
	return client.NewGateway(response.Msg.GetUrl(), a.client.GatewayCAFile)
}

// runningWorkspace returns a workspace that runs. The error names what starts one that does not.
func (a *app) runningWorkspace(ctx context.Context, nameOrID string) (*client.API, *statev1.Workspace, error) {
	api, w, err := a.workspace(ctx, nameOrID)
	if err != nil {
		return nil, nil, err
	}
	if w.GetActualState() != statev1.ActualState_ACTUAL_STATE_RUNNING {
		return nil, nil, fault.New(errcode.FailedPrecondition, "workspace %q is not running but %s: start it with "+
			"`lockstep ws start %s --wait`", w.GetName(),
			strings.ToLower(enumName(w.GetActualState().String(), actualStatePrefix)), w.GetName())
	}
	return api, w, nil
}

// openBrowser opens an address in the browser. It returns an error if this machine has no program for it.
func openBrowser(ctx context.Context, address string) error {
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return fault.Wrap(err, errcode.FailedPrecondition, "the program %s was not found", program)
	}
	command := exec.CommandContext(ctx, path, address) //nolint:gosec // the browser of this machine, with our own address
	if err := command.Run(); err != nil {
		return fault.Wrap(err, errcode.FailedPrecondition, "%s failed: %v", program, err)
	}
	return nil
}
