package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

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
				request := &statev1.GetWorkspaceRequest{Workspace: reference(name)}
				if _, err := api.Workspaces.GetWorkspace(c.Context(), connect.NewRequest(request)); err != nil {
					return err
				}
				filter.Workspaces = append(filter.Workspaces, reference(name))
			}
			return a.watch(c.Context(), api, filter, func(*statev1.WatchWorkspacesResponse) (bool, error) { return false, nil })
		},
	}
}

// watch prints messages until enough returns true, or ctx is done. It opens a lost stream again.
func (a *app) watch(
	ctx context.Context,
	api *client.API,
	filter *statev1.WorkspaceFilter,
	enough func(*statev1.WatchWorkspacesResponse) (bool, error),
) error {
	began, shown, last := time.Now(), map[string]string{}, map[string]*statev1.Workspace{}
	// Of a stream that is opened again, what is known is skipped, and what ended before the command.
	isNew := func(message *statev1.WatchWorkspacesResponse) bool {
		w := message.GetWorkspace()
		before, known := last[w.GetId()]
		last[w.GetId()] = w
		switch {
		case !message.GetInitial():
			return true
		case known:
			return !proto.Equal(before, w)
		default:
			return w.GetActualState() != statev1.ActualState_ACTUAL_STATE_TERMINATED || filter.GetIncludeTerminated() ||
				w.GetCreatedAt().AsTime().After(began)
		}
	}
	request := &statev1.WatchWorkspacesRequest{Filter: filter}
	return followStream(ctx, a.noteStream, func(ctx context.Context, state *streamState) error {
		stream, err := api.Workspaces.WatchWorkspaces(ctx, connect.NewRequest(request))
		if err != nil {
			return err
		}
		defer stream.Close() //nolint:errcheck // read to its end
		state.answer(stream.ResponseHeader())
		again := proto.CloneOf(filter)
		again.IncludeTerminated = true // what is terminated until then
		request = &statev1.WatchWorkspacesRequest{Filter: again}
		for stream.Receive() {
			state.receive()
			if !isNew(stream.Msg()) {
				continue
			}
			if err := a.showChange(stream.Msg(), shown); err != nil {
				return err
			}
			if done, err := enough(stream.Msg()); done || err != nil {
				return err
			}
		}
		return cmp.Or(stream.Err(), errStreamEnded)
	})
}

// noteStream notes what happens to a stream.
func (a *app) noteStream(text string) { _ = a.note("%s", text) } // standard error may be closed

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
	state := fmt.Sprintf("%-24s %-18s", w.GetName(), freshOrStale(w))
	if desired(w) == actual(w) && w.GetMessage() == "" {
		state = strings.TrimRight(state, " ")
	}
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
