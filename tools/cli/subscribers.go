package cli

import (
	"context"
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
	return group("subscriber",
		"Create, list and revoke subscribers: external tools that read deploy facts, jobs or their admission",
		a.subscriberCreate(), a.subscriberList(), a.subscriberRevoke())
}

func (a *app) subscriberCreate() *cobra.Command {
	request := &statev1.CreateSubscriberRequest{}
	var file string
	c := &cobra.Command{
		Use:   "create NAME --credentials FILE",
		Short: "Create a subscriber to deploy facts, or events of jobs or of their admission, on NATS",
		Args:  exactly("NAME"),
		Long: `Create a subscriber and write its credentials, which only this file has. They allow a tool to read
the events of its filter only, deploy facts, events of CI jobs, or those of their admission:

  from its own durable consumer, which keeps events until the tool acknowledges them;
  live, as the user "NAME.live" with the same password, without events from before the connection.

The file is also a context of the nats command line. deploy/subscribers has example programs.`,
		Example: `  lockstep subscriber create ci --credentials ci.json
  lockstep subscriber create shop --filter 'deploy.*.shop.>' --from-beginning --credentials shop.json
  lockstep subscriber create jobs --filter 'job.17.*.finished' --credentials jobs.json
  lockstep subscriber create audit --filter 'admission.17.*.decided' --credentials audit.json`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			if file == "" {
				file = args[0] + ".json"
			}
			if err := checkNewFile(file); err != nil {
				return err
			}
			request.Name = args[0]
			response, err := api.Subscribers.CreateSubscriber(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			created := response.Msg
			credentials := subscriberCredentials(created)
			if err := natsauth.WriteSubscriberCredentials(file, credentials, created.GetNatsCa()); err != nil {
				return fault.Wrap(
					err,
					errcode.Internal,
					"created subscriber %s, but cannot write its credentials to %s: %v; revoke it and create another",
					args[0],
					file,
					err,
				)
			}
			if err := a.note("wrote the credentials to %s", file); err != nil {
				return err
			}
			return a.print(created.GetSubscriber(), subscriberTable(created.GetSubscriber()))
		},
	}
	c.Flags().StringVar(&file, "credentials", "", "credentials file to write (default NAME.json)")
	c.Flags().
		StringVar(&request.Filter, "filter", "", "events to read: deploy.<cluster>.<namespace>.<kind>.<name>.<fact>, "+
			"job.<project id>.<job id>.<event> or admission.<project id>.<job id>.<event>, * for any word, > for "+
			"the rest; default: all deploy facts")
	c.Flags().
		BoolVar(&request.FromBeginning, "from-beginning", false, "start with the oldest stored event; default: "+
			"with the next one")
	return c
}

func subscriberCredentials(created *statev1.CreateSubscriberResponse) natsauth.SubscriberCredentials {
	s := created.GetSubscriber()
	return natsauth.SubscriberCredentials{
		Description: "Events of Lockstep, for the subscriber " + s.GetName(),
		URL:         strings.Join(created.GetNatsUrls(), ","),
		User:        created.GetUser(),
		Password:    created.GetToken(),
		Listener:    created.GetListener(),
		InboxPrefix: created.GetInboxPrefix(),
		Stream:      s.GetStream(),
		Consumer:    s.GetConsumer(),
		Filter:      s.GetFilter(),
	}
}

func (a *app) subscriberList() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "list", Short: "List subscribers, oldest first, with the number of events that wait for each", Args: exactly(),
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
	c.Flags().BoolVar(&all, "all", false, "include revoked subscribers")
	return c
}

func (a *app) subscriberRevoke() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke NAME",
		Short: "Revoke the credentials of a subscriber permanently and close its connections",
		Args:  exactly("NAME"),
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
				response, err := api.Subscribers.RevokeSubscriber(c.Context(),
					connect.NewRequest(&statev1.RevokeSubscriberRequest{Id: s.GetId()}))
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
		response, err := api.Subscribers.ListSubscribers(ctx,
			connect.NewRequest(&statev1.ListSubscribersRequest{PageToken: token}))
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
