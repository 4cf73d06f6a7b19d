package natsauth

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"

	"lockstep.internal/libs/topology"
)

// authTimeout is how long the server waits for a responder before it refuses a client.
const authTimeout = 5 * time.Second

type staticUser struct {
	StaticPrincipal

	public string
}

// renderConfig is a pure function of what goes in: the same options and keys give the same bytes.
func renderConfig(o Options, issuer, exchange string, users []staticUser) []byte {
	w := &configWriter{}

	w.linef(
		"# Written by `lockstep nats init` for cell %s. Run it again instead of editing: it writes this file anew.",
		o.Cell,
	)
	w.linef("# There is no secret in here; the keys are in ./%s.", keyDir)
	w.linef("")

	if o.ServerName != "" {
		w.linef("server_name: %s", quote(o.ServerName))
	}

	w.linef("listen: %s", quote(o.ListenHost+":"+strconv.Itoa(o.ListenPort)))

	if o.MonitorPort != 0 {
		w.linef("http: %s", quote(o.ListenHost+":"+strconv.Itoa(o.MonitorPort)))
	}

	w.linef("max_payload: %d", topology.MaxMessageSize)
	w.tls(o.TLS)
	w.linef("")
	w.linef("# Permissions and exports name acknowledgement subjects in this form; it must not change under them.")
	w.linef("feature_flags { js_ack_fc_v2: false }")
	w.linef("")
	w.jetstream(o)
	w.cluster(o.Cluster)
	w.authorization(issuer, exchange, users)
	w.accounts(o.Cell, users)

	return w.buffer.Bytes()
}

type configWriter struct {
	buffer bytes.Buffer
	indent int
}

func (w *configWriter) linef(format string, args ...any) {
	if format != "" {
		w.buffer.WriteString(strings.Repeat("  ", w.indent))
		fmt.Fprintf(&w.buffer, format, args...)
	}

	w.buffer.WriteByte('\n')
}

func (w *configWriter) block(name, begin, end string, body func()) {
	w.linef("%s", name+begin)
	w.indent++
	body()
	w.indent--
	w.linef("%s", end)
}

func (w *configWriter) section(name string, body func()) { w.block(name, " {", "}", body) }

func (w *configWriter) list(name string, body func()) { w.block(name, ": [", "]", body) }

func (w *configWriter) tls(t *TLS) {
	if t == nil {
		return
	}

	w.section("tls", func() {
		w.linef("cert_file: %s", quote(t.CertFile))
		w.linef("key_file: %s", quote(t.KeyFile))

		if t.CAFile != "" {
			w.linef("ca_file: %s", quote(t.CAFile))
		}

		w.linef("verify: %t", t.VerifyClients)
		w.linef("min_version: \"1.2\"")
	})
}

func (w *configWriter) jetstream(o Options) {
	w.section("jetstream", func() {
		w.linef("store_dir: %s", quote(o.StoreDir))

		if o.SyncInterval == SyncAlways {
			w.linef("sync_interval: always")
		} else {
			w.linef("sync_interval: %s", quote(o.SyncInterval.String()))
		}
	})
	w.linef("")
}

func (w *configWriter) cluster(c *Cluster) {
	if c == nil {
		return
	}

	w.section("cluster", func() {
		w.linef("name: %s", quote(c.Name))
		w.linef("listen: %s", quote(c.ListenHost+":"+strconv.Itoa(c.ListenPort)))
		w.linef("routes: [%s]", quoteAll(c.Routes))
		w.tls(c.TLS)
	})
	w.linef("")
}

func (w *configWriter) authorization(issuer, exchange string, users []staticUser) {
	w.linef(
		"# Who is not one of the users below is asked for at the responder in account %s, which signs with the issuer key.",
		AccountAuth,
	)
	w.section("authorization", func() {
		w.linef("timeout: %q", authTimeout)
		w.section("auth_callout", func() {
			w.linef("account: %s", AccountAuth)
			w.linef("issuer: %s", issuer)
			w.linef("xkey: %s", exchange)
			w.list("auth_users", func() {
				for _, u := range users {
					w.linef("%s # %s", u.public, u.Name)
				}
			})
		})
	})
	w.linef("")
	w.linef("system_account: %s", AccountSystem)
	w.linef("")
}

func (w *configWriter) accounts(cell topology.Cell, users []staticUser) {
	ways := crossings(cell)
	nowhere := cell.Prefix(nowhereFamily)

	w.section("accounts", func() {
		w.section(string(AccountControl), func() {
			w.linef("jetstream: enabled")
			w.list("exports", func() {
				for _, way := range ways {
					w.exports(way)
				}

				w.linef("{service: %s, accounts: [%s, %s]}", quote(nowhere), AccountAgents, AccountSubscribers)
			})
			w.denyByDefault()
			w.users(AccountControl, users)
		})
		w.linef("# No JetStream here: a publish whose reply is a stream's subject would store the acknowledgement there.")

		for _, way := range ways {
			w.section(string(way.account), func() {
				w.list("imports", func() { w.imports(way, nowhere) })

				if way.outside {
					w.linef("limits {max_subscriptions: %d, max_payload: %d} # of each connection", readerSubscriptions, readerPayload)
				}

				w.denyByDefault()
			})
		}

		for _, account := range []Account{AccountAuth, AccountSystem} {
			w.section(string(account), func() {
				w.denyByDefault()
				w.users(account, users)
			})
		}
	})
}

// exports are what AccountControl offers to one account.
func (w *configWriter) exports(way crossing) {
	for _, s := range way.services {
		if s.manyAnswers {
			w.linef(
				"{service: %s, accounts: [%s], response_type: stream, threshold: %q}", quote(s.subject), way.account,
				pullThreshold,
			)
		} else {
			w.linef("{service: %s, accounts: [%s]}", quote(s.subject), way.account)
		}
	}

	for _, subject := range slices.Sorted(maps.Keys(way.streams)) {
		w.linef("{stream: %s, accounts: [%s]}", quote(subject), way.account)
	}
}

// imports are the other side of exports.
func (w *configWriter) imports(way crossing, nowhere string) {
	for _, s := range way.services {
		w.linef("{service: {account: %s, subject: %s}}", AccountControl, quote(s.subject))
	}

	for _, subject := range slices.Sorted(maps.Keys(way.streams)) {
		w.linef("{stream: {account: %s, subject: %s}, to: %s}", AccountControl, quote(subject), quote(way.streams[subject]))
	}

	if len(way.services) > 0 {
		w.linef("# Without this the server answers the JetStream API here itself, and first: \"not enabled for account\".")
		w.linef("{service: {account: %s, subject: %s}, to: %s}", AccountControl, quote(nowhere), quote(accountInfoSubject))
	}
}

// denyByDefault is for users that name no permissions of their own; to the server that would mean
// "everything".
func (w *configWriter) denyByDefault() {
	w.permissions("default_permissions", denyAll())
}

func (w *configWriter) users(account Account, users []staticUser) {
	w.list("users", func() {
		for _, u := range users {
			if u.Account != account {
				continue
			}

			w.linef("# %s", u.Name)
			w.section("", func() {
				w.linef("nkey: %s", u.public)
				w.permissions("permissions", u.Permissions)
			})
		}
	})
}

func (w *configWriter) permissions(name string, p jwt.Permissions) {
	w.section(name, func() {
		w.permission("publish", p.Pub)
		w.permission("subscribe", p.Sub)

		if p.Resp != nil {
			w.linef("allow_responses: {max: %d, expires: %q}", p.Resp.MaxMsgs, p.Resp.Expires)
		}
	})
}

func (w *configWriter) permission(name string, p jwt.Permission) {
	var parts []string

	if len(p.Allow) > 0 {
		parts = append(parts, "allow: ["+quoteAll(p.Allow)+"]")
	}

	if len(p.Deny) > 0 {
		parts = append(parts, "deny: ["+quoteAll(p.Deny)+"]")
	}

	w.linef("%s: {%s}", name, strings.Join(parts, ", "))
}

func quoteAll(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = quote(v)
	}

	return strings.Join(quoted, ", ")
}

// quote writes a string literal of the server's configuration language.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(s) + `"`
}
