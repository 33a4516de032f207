package notify

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
)

// CollectTx is what collecting needs of the transaction that stores a cause.
type CollectTx interface {
	agent.Writer
	// NotifyIndex reads the enabled rules of all active projects.
	NotifyIndex() ([]IndexRow, error)
	// NotifyCollect counts an occurrence in its group, at the end of the transaction. A new group speaks at once; beyond
	// Most groups of the rule it is counted in the group of "". A rule that is gone or turned off, or of an archived
	// project, changes nothing.
	NotifyCollect(c Collected) error
}

// Collected is an occurrence that a rule fits.
type Collected struct {
	RuleNo int64
	Key    string // never ""
	Most   int    // groups of the rule
	At     time.Time
	Sample func() ([]byte, error) // the text of the occurrence; of those of one group only the last one's is called
	Fresh  func()                 // called after the commit when the group is new
}

// IndexRow is a rule as the index holds it.
type IndexRow struct {
	RuleNo      int64
	RuleID      uuid.UUID
	ProjectNo   int64
	ProjectID   uuid.UUID
	ProjectSlug string
	RuleName    string
	Trigger     Trigger
	Pattern     string
	Channels    []Channel // enabled ones, of rules about the appliance only: they must work without the database
}

// Group is a group that is due.
type Group struct {
	RuleNo      int64
	RuleID      uuid.UUID
	RuleName    string
	ProjectNo   int64
	ProjectID   uuid.UUID
	ProjectSlug string
	Trigger     Trigger
	Silence     time.Duration // of the rule
	Key         string
	Collected   int64
	IsTold      bool
	FirstAt     time.Time
	LastAt      time.Time
	Sample      []byte
}

// Outgoing is a message that is due, with its channel.
type Outgoing struct {
	No        int64
	ID        uuid.UUID
	CreatedAt time.Time
	Subject   string
	Body      []byte
	Attempts  int
	ExpiresAt time.Time
	Channel   Channel
}

// ChannelDue is a channel for which messages wait.
type ChannelDue struct {
	ChannelNo int64
	Failures  int
	RetryAt   time.Time // of the channel; zero: without failures
	First     time.Time // when the first message is due
}

// OfflineAgent is an agent in an offline period that was not looked at yet.
type OfflineAgent struct {
	No         int64
	ID         uuid.UUID
	Name       string
	ProjectNo  int64
	Active     bool // its project is
	Since      time.Time
	LastSeenAt time.Time // zero: never
}

// ReadTx is what the package reads. Single-row methods fail with NotFound when there is no row.
type ReadTx interface {
	agent.Reader
	// NotifyIndex is as in CollectTx.
	NotifyIndex() ([]IndexRow, error)
	NotifyChannels(projectNo int64) ([]Channel, error)
	NotifyChannel(projectNo int64, id uuid.UUID) (Channel, error)
	// NotifyChannelsAfter lists channels of all projects by number.
	NotifyChannelsAfter(no int64, limit int) ([]Channel, error)
	NotifyRules(projectNo int64) ([]Rule, error)
	NotifyRule(projectNo int64, id uuid.UUID) (Rule, error)
	// NotifyNextGroup is when the first group is due; the zero time when there is none.
	NotifyNextGroup() (time.Time, error)
	// NotifyDueChannels lists the enabled channels with pending messages.
	NotifyDueChannels() ([]ChannelDue, error)
	// NotifyNextOf is the pending message of a channel whose turn is first, due or not.
	NotifyNextOf(channelNo int64) (Outgoing, error)
	NotifyList(projectNo int64, f Filter, page agent.Page) ([]Notification, error)
	NotifyByID(projectNo int64, id uuid.UUID) (Notification, error)
	NotifyPendingCount() (int64, error)
	// NotifyOffline lists agents in an offline period that was not looked at, the longest first; revoked ones are not.
	NotifyOffline(limit int) ([]OfflineAgent, error)
}

// Tx is what the package writes through.
type Tx interface {
	ReadTx
	CollectTx
	audit.Tx

	NotifyInsertChannel(c Channel) error
	NotifyUpdateChannel(c Channel) error
	NotifyDeleteChannel(no int64) error
	// NotifyEndPending gives up the pending messages of a channel.
	NotifyEndPending(channelNo int64, reason string) error
	NotifyInsertRule(r Rule) error
	// NotifyUpdateRule stores a rule and its channels.
	NotifyUpdateRule(r Rule) error
	NotifyDeleteRule(no int64) error

	// NotifyDueGroups lists groups that are due, at most limit.
	NotifyDueGroups(now time.Time, limit int) ([]Group, error)
	// NotifyGroupTold empties a group and has it silent until the time.
	NotifyGroupTold(ruleNo int64, key string, until time.Time) error
	NotifyForgetGroup(ruleNo int64, key string) error
	// NotifyRuleChannels lists the enabled channels of a rule.
	NotifyRuleChannels(ruleNo int64) ([]int64, error)
	// NotifyPendingOf counts the pending messages of a channel.
	NotifyPendingOf(channelNo int64) (int, error)
	// NotifyInsert stores a message; ruleNo 0 is none.
	NotifyInsert(n Notification, ruleNo, channelNo int64) error
	// NotifyUpdate stores state, attempts, next attempt, error and end of a message that is still pending. One that was
	// given up while it was on its way is changed only when it arrived.
	NotifyUpdate(n Notification) error
	// NotifyChannelFailed notes a further failure of a channel that had so many, and when it is tried again. Nothing
	// changes when the channel was resumed meanwhile.
	NotifyChannelFailed(channelNo int64, failures int, retryAt time.Time) error
	// NotifyResume ends the pause of a channel; with all, the pauses of its messages too, and the oldest goes first.
	NotifyResume(channelNo int64, all bool) error
	// NotifyExpire gives up the pending messages of a channel whose time is over; those never tried get the reason.
	NotifyExpire(channelNo int64, reason string) error
	// NotifyRevive makes a dead message pending again, as if it were new; false when it is not dead.
	NotifyRevive(no int64, expires time.Time) (bool, error)
	// NotifySilence gives up the pending messages of a project, and forgets what its rules have collected.
	NotifySilence(projectNo int64, reason string) error
	// NotifyPrune removes messages that ended before the time, at most limit.
	NotifyPrune(before time.Time, limit int) (int, error)
	// NotifyBound brings forward what is due later than can be meant, after the clock was set back: groups after their
	// rule's time, messages and channels after the latest.
	NotifyBound(latest time.Time) error
	// NotifyMarkOffline records that an offline period was looked at.
	NotifyMarkOffline(agentNo int64, since time.Time) error
}

// Store runs the transactions.
type Store = agent.Store[Tx, ReadTx]
