package notifysend

import (
	"context"
	"io"
	"log"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"

	"signalbox/appliance/fault"
	"signalbox/appliance/notify"
)

// Services lists the chat and push services by the scheme of their URLs. Webhooks and e-mail have kinds of their own.
func Services() []string {
	return []string{"bark", "discord", "googlechat", "gotify", "hangouts", "ifttt", "join", "lark", "matrix", "mattermost", "notifiarr",
		"ntfy", "opsgenie", "pagerduty", "pushbullet", "pushover", "rocketchat", "signal", "slack", "teams", "telegram", "wecom", "zulip"}
}

// silent keeps the library from writing: what it logs may hold URLs and messages.
var silent = log.New(io.Discard, "", 0)

// locate makes the service of a URL. It sends nothing for the services of Services, except that matrix signs in.
func locate(rawURL string) (types.Service, error) {
	r, err := router.New(silent)
	if err != nil {
		return nil, err
	}
	return r.Locate(rawURL)
}

func checkService(s *notify.ServiceSettings) error {
	text := s.URL.Reveal()
	u, err := url.Parse(text)
	if err != nil {
		return fault.Field("settings.url", "is not a URL") // the parser's message would show it
	}
	name, _, _ := strings.Cut(u.Scheme, "+")
	if !slices.Contains(Services(), name) {
		return fault.Field("settings.url", "must begin with the name of a service and ://, one of %s", strings.Join(Services(), ", "))
	}
	if name == "matrix" { // it would sign in
		return nil
	}
	if _, err := locate(text); err != nil {
		return fault.Field("settings.url", "does not have the form that the service %s needs; see docs/notifications.md", name)
	}
	return nil
}

// status finds the HTTP status in what the library says.
var status = regexp.MustCompile(`(?i)(?:status(?: ?code)?|response|http)[^0-9a-z]{1,4}"?([1-5][0-9]{2})\b`)

// sendService hands the message to the library.
func (s *Sender) sendService(ctx context.Context, set *notify.ServiceSettings, m notify.Message) error {
	text := set.URL.Reveal()
	scheme, _, _ := strings.Cut(text, ":")
	name, _, _ := strings.Cut(scheme, "+")
	who := "the service " + strings.ToLower(name)
	return s.guard(ctx, text, who, func() error {
		err := sendThrough(text, tame(strings.ToLower(name), m.Text))
		if err == nil {
			return nil
		}
		if found := status.FindStringSubmatch(err.Error()); found != nil {
			if code, _ := strconv.Atoi(found[1]); code >= 300 {
				return statusError(who, code, "")
			}
		}
		e := networkError(who, err)
		if strings.HasSuffix(e.Msg, "could not be reached") {
			e.Msg = who + " refused the message or could not be reached"
		}
		return e
	})
}

// marked are the services whose texts may call people and hide where a link leads.
var marked = []string{"discord", "googlechat", "hangouts", "lark", "matrix", "mattermost", "rocketchat", "slack", "teams", "telegram",
	"wecom", "zulip"}

// tame keeps names and error texts, which anybody may have written, from calling people (@everyone, <!channel>) and from
// making links that read as something else: a space of no width stands behind what would begin them.
func tame(service, text string) string {
	if !slices.Contains(marked, service) {
		return text
	}
	return strings.NewReplacer("@", "@\u200b", "<", "<\u200b", "](", "]\u200b(").Replace(text)
}

// sendThrough makes the call. A panic of the library is an error.
func sendThrough(rawURL, text string) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &notify.SendError{Msg: "the library of the service failed"}
		}
	}()
	svc, err := locate(rawURL)
	if err != nil {
		return err
	}
	return svc.Send(text, &types.Params{}) // not all services know a title
}
