package cli

import (
	"context"
	"os"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

func (a *app) subscribers() *cobra.Command {
	return group("subscriber", "Subscribers: tools outside that read deploy facts", a.subscriberCreate(), a.subscriberList(), a.subscriberRevoke())
}

func (a *app) subscriberCreate() *cobra.Command {
	request := &statev1.CreateSubscriberRequest{}
	var file string
	c := &cobra.Command{
		Use: "create NAME --credentials FILE", Short: "Let a tool read deploy facts from NATS", Args: exactly("NAME"),
		Long: `Make a subscriber and write its credentials, which are shown to nobody else. With them a tool may read deploy facts and do nothing else:

  from its own durable consumer, which remembers what was acknowledged, so that nothing is missed while the tool is away;
  live, as "NAME.live" with the same password, when it is enough to hear what happens while the tool listens.

The file is also a context of the nats command line. Programs that show how to read are in deploy/subscribers.`,
		Example: `  lockstep subscriber create ci --credentials ci.json
  lockstep subscriber create shop --filter 'deploy.*.shop.>' --from-beginning --credentials shop.json`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			if file == "" {
				file = args[0] + ".json"
			}
			if _, err := os.Stat(file); err == nil {
				return fault.New(errcode.AlreadyExists, "%s exists already: give another --credentials", file)
			}
			request.Name = args[0]
			response, err := api.Subscribers.CreateSubscriber(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			made := response.Msg
			if err := natsauth.WriteSubscriberCredentials(file, subscriberCredentials(made), made.GetNatsCa()); err != nil {
				return fault.Wrap(err, errcode.Internal, "subscriber %s is made, but its credentials could not be written to %s: %v; revoke it and make another", args[0], file, err)
			}
			if err := a.note("credentials written to %s", file); err != nil {
				return err
			}
			return a.print(made.GetSubscriber(), subscriberTable(made.GetSubscriber()))
		},
	}
	c.Flags().StringVar(&file, "credentials", "", "file to write the credentials to (default NAME.json)")
	c.Flags().StringVar(&request.Filter, "filter", "", "facts that it may read: deploy.<cluster>.<namespace>.<kind>.<name>.<fact>, * for any one of these, > for the rest; default: all")
	c.Flags().BoolVar(&request.FromBeginning, "from-beginning", false, "begin with the oldest fact that is stored; default: with the next one")
	return c
}

func subscriberCredentials(made *statev1.CreateSubscriberResponse) natsauth.SubscriberCredentials {
	s := made.GetSubscriber()
	return natsauth.SubscriberCredentials{
		Description: "Deploy facts of Lockstep, for the subscriber " + s.GetName(), URL: strings.Join(made.GetNatsUrls(), ","), User: made.GetUser(), Password: made.GetToken(),
		Listener: made.GetListener(), InboxPrefix: made.GetInboxPrefix(), Stream: s.GetStream(), Consumer: s.GetConsumer(), Filter: s.GetFilter(),
	}
}

func (a *app) subscriberList() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "list", Short: "List subscribers, and how much waits for each", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			found, err := listSubscribers(c.Context(), api, all)
			if err != nil {
				return err
			}
			return a.print(&statev1.ListSubscribersResponse{Subscribers: found}, subscriberTable(found...))
		},
	}
	c.Flags().BoolVar(&all, "all", false, "revoked ones too")
	return c
}

func (a *app) subscriberRevoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke NAME", Short: "Void a subscriber's credentials and cut its connections, for ever", Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			found, err := listSubscribers(c.Context(), api, false)
			if err != nil {
				return err
			}
			for _, s := range found {
				if s.GetName() != args[0] {
					continue
				}
				response, err := api.Subscribers.RevokeSubscriber(c.Context(), connect.NewRequest(&statev1.RevokeSubscriberRequest{Id: s.GetId()}))
				if err != nil {
					return err
				}
				return a.print(response.Msg, subscriberTable(response.Msg.GetSubscriber()))
			}
			return fault.New(errcode.NotFound, "subscriber %s does not exist: see `lockstep subscriber list`", args[0])
		},
	}
}

func listSubscribers(ctx context.Context, api *client.API, all bool) ([]*statev1.Subscriber, error) {
	var found []*statev1.Subscriber
	for token := ""; ; {
		response, err := api.Subscribers.ListSubscribers(ctx, connect.NewRequest(&statev1.ListSubscribersRequest{PageToken: token}))
		if err != nil {
			return nil, err
		}
		for _, s := range response.Msg.GetSubscribers() {
			if all || !s.GetRevoked() {
				found = append(found, s)
			}
		}
		if token = response.Msg.GetNextPageToken(); token == "" {
			return found, nil
		}
	}
}

func subscriberTable(subscribers ...*statev1.Subscriber) table {
	t := table{header: []string{"NAME", "FILTER", "CONSUMER", "AGE", "WAITING", "STATE"}}
	for _, s := range subscribers {
		state, pending := "active", "?"
		if s.GetRevoked() {
			state, pending = "revoked", ""
		}
		if s.Pending != nil {
			pending = strconv.FormatUint(s.GetPending(), 10)
		}
		t.rows = append(t.rows, []string{s.GetName(), s.GetFilter(), s.GetConsumer(), age(s.GetCreatedAt()), pending, state})
	}
	return t
}
