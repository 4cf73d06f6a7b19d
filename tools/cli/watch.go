package cli

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

func (a *app) workspaceWatch() *cobra.Command {
	return &cobra.Command{
		Use:               "watch [WORKSPACE…]",
		Short:             "Show changes of workspaces until Ctrl-C",
		ValidArgsFunction: a.completeWorkspaces,
		Long: "Show changes of all workspaces, or of those named. With -o json, print one " +
			"message per line.",
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			filter := &statev1.WorkspaceFilter{IncludeTerminated: len(args) > 0}
			for _, name := range args {
				filter.Workspaces = append(filter.Workspaces, reference(name))
			}
			return a.watch(c.Context(), api, filter, func(*statev1.WatchWorkspacesResponse) (bool, error) { return false, nil })
		},
	}
}

// watch prints messages until enough returns true, the server ends the stream, or ctx is done.
func (a *app) watch(
	ctx context.Context,
	api *client.API,
	filter *statev1.WorkspaceFilter,
	enough func(*statev1.WatchWorkspacesResponse) (bool, error),
) error {
	stream, err := api.Workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{Filter: filter}))
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // read to its end
	shown := map[string]string{}
	for stream.Receive() {
		if err := a.showChange(stream.Msg(), shown); err != nil {
			return err
		}
		if done, err := enough(stream.Msg()); done || err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := stream.Err(); err != nil {
		return fault.From(err)
	}
	return fault.New(errcode.Unavailable, "the server ended the watch: run the command again")
}

// showChange prints one line per change. As text, it skips changes that are not visible.
func (a *app) showChange(message *statev1.WatchWorkspacesResponse, shown map[string]string) error {
	w := message.GetWorkspace()
	if a.output != outputTable {
		raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(message)
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return a.write(string(raw) + "\n")
	}
	state := fmt.Sprintf("%-24s %-18s", w.GetName(), actual(w))
	if desired(w) != actual(w) {
		state += " desired: " + desired(w)
	}
	if w.GetMessage() != "" {
		state += "  " + w.GetMessage()
	}
	if shown[w.GetId()] == state {
		return nil
	}
	shown[w.GetId()] = state
	return a.write(time.Now().Format("15:04:05.000") + "  " + state + "\n")
}
